"""The templates in launch/: what they contain, and the `spotlight` commands in them."""

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from document_commands import ROOT
from launch_schemas import KINDS, Container, Pod
from pydantic import BaseModel
from typer.main import get_command

from spotlight.surface.cli.main import app

LAUNCH = ROOT / "launch"
MONITORING = LAUNCH / "monitoring"
"""Files for Prometheus and Grafana, which tests/unit/test_metrics.py checks."""
TEMPLATES = sorted(
    str(path.relative_to(LAUNCH)) for path in LAUNCH.rglob("*") if path.is_file() and path.parent != MONITORING
)
COMMAND = re.compile(r"(?<![\w./:-])(?:~/spotlight/bin/)?spotlight ((?:[a-z]+)(?: [^\n|;&>)`]*)?)")
VERBS = frozenset(get_command(app).commands)  # type: ignore[attr-defined]


def text(template: str) -> str:
    return (LAUNCH / template).read_text()


def documents(template: str) -> list[Any]:
    return list(yaml.safe_load_all(text(template)))


def objects(template: str) -> dict[str, BaseModel]:
    """Its Kubernetes objects, by kind."""
    return {found["kind"]: KINDS[found["kind"]].model_validate(found) for found in documents(template)}


def pods(template: str) -> Iterator[tuple[Pod, dict[str, str]]]:
    """Its pods, with their labels."""
    for found in objects(template).values():
        spec: Any = found.spec  # type: ignore[attr-defined]
        groups = [spec.headGroupSpec, *spec.workerGroupSpecs] if hasattr(spec, "headGroupSpec") else [spec]
        for each in groups if hasattr(groups[0], "template") else ():
            yield each.template.spec, each.template.metadata.labels if each.template.metadata else {}


def shell(container: Container) -> str:
    """The script of a container that is started as `sh -c SCRIPT`."""
    program, option, script = container.args
    assert (program, option) == ("sh", "-c")
    return script


def commands(template: str) -> list[str]:
    """Every `spotlight` command of a template, also those in its remarks, without what the shell adds."""
    joined = re.sub(r"\\\n#?\s*", "", text(template))
    found = (match[1] for match in COMMAND.finditer(joined) if match[1].split()[0] in VERBS)
    return [f"spotlight {re.sub(r' [&0-9]*$', '', each).rstrip(chr(39)).strip()}" for each in found]


def only(template: str, verb: str) -> str:
    """The one command of this verb."""
    (command,) = [each for each in commands(template) if words_of(each)[0] == verb]
    return command


def words_of(command: str) -> list[str]:
    return shlex.split(command)[1:]


def options(command: str) -> dict[str, str]:
    """Options of a command that take a value."""
    words = words_of(command)
    return {name: value for name, value in pairwise(words) if name.startswith("--")}


def written_programs(folder: Path, **programs: str) -> Path:
    """A folder with these shell scripts, for the front of PATH."""
    folder.mkdir()
    for name, script in programs.items():
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)
    return folder


# -- images ------------------------------------------------------------------------------------------------------------


def instructions(template: str) -> list[tuple[str, str]]:
    """Instructions of a Dockerfile, with the rest of their lines."""
    lines = text(template).replace("\\\n", "").splitlines()
    parts = (line.partition(" ") for line in lines if line and not line.startswith("#"))
    return [(name, rest) for name, _, rest in parts]


def runs(template: str) -> list[str]:
    return [rest for name, rest in instructions(template) if name == "RUN"]


def copied(template: str) -> list[str]:
    """Paths of the repository that go into the image."""
    return [path for name, rest in instructions(template) if name == "COPY" for path in rest.split()[:-1]]
