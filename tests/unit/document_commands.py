"""Commands and settings that a document shows, and what is wrong with them."""

import re
import runpy
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
from pydantic import BaseModel
from typer.main import get_command

from spotlight import assets
from spotlight.config import RunConfig
from spotlight.surface.cli.main import app
from spotlight.surface.cli.overrides import PLAIN_KEYS

ROOT = Path(__file__).parents[2]
ASSETS = Path(assets.__file__).parent
PROGRAMS = ("spotlight ", "make ", "python -m benchmarks")
OTHER_PROGRAMS = (
    "docker ", "kubectl ", "pip install ", "python -c ", "sbatch ", "printf ", "ray ", "nc ", "chmod ", ". ",
    ".venv/bin/python ",
)  # fmt: skip
"""What they name of the repository is looked up."""
INLINE = re.compile(r"`([^`\n]+)`")
SETTING = re.compile(r"([a-z_]+(?:\.[a-z_0-9]+)+)(?::\s.*|=.*)?")
TAKES_SETTINGS = ("train", "sim", "compare")
"""Verbs whose settings may be options of their own, `--section.key value`."""
TAKES_RECIPE = ("train", "plan", "sim", "compare")
SHIPPED = {"--profile": "profiles/{}.json", "--trace": "traces/{}.csv", "--pace": "profiles/{}.json"}
"""Options whose values in lower case name a file of the package."""


def commands_in(text: str) -> list[str]:
    """Lines of blocks of commands, and inline code that begins with one of the programs, without their remarks."""
    blocks = re.findall(r"^```\w*.*?\n(.*?)^```|((?:^    [^\n]*\n)+)", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in _commands_of("".join(block))]
    inline = INLINE.findall(re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    shown = lines + [code for code in inline if code.startswith((*PROGRAMS, *OTHER_PROGRAMS))]
    return [re.sub(r"\s+#.*", "", line) for line in shown]


def _commands_of(block: str) -> list[str]:
    """All lines of a block that has one command; with prompts, those after a prompt."""
    lines = [line.strip() for line in block.splitlines() if line.strip()]
    after_prompt = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    is_shell = any(line.startswith((*PROGRAMS, *OTHER_PROGRAMS)) for line in lines)
    return after_prompt or (lines if is_shell else [])


def problems_with(command: str) -> list[str]:
    """The mistakes in a command, without running it."""
    if command.startswith(OTHER_PROGRAMS):
        return list(_problems_of_other(shlex.split(command)))
    words = shlex.split(command.replace("[", "").replace("]", ""))
    if words[0] == "make":
        return _problems_of_make(words[1:])
    if words[0] == "python":
        return _problems_of_benchmark(words[2].removeprefix("benchmarks."), words[3:])
    return _problems_of_verb(words[1:])


def unknown_settings_in(text: str) -> set[str]:
    """Inline code that has the form of a setting, `section.key` or `section.key: value`, and names none."""
    named = {match[1] for code in INLINE.findall(text) if (match := SETTING.fullmatch(code))}
    return {name for name in named if name.partition(".")[0] in SECTIONS and not is_setting(name)}


# -- settings ----------------------------------------------------------------------------------------------------------


def _keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for part in _models(field.annotation):
            yield from _keys(part, f"{prefix}{name}.")


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """The sections that an annotation allows."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
    else:
        for part in get_args(annotation):
            yield from _models(part)


KEYS = frozenset(_keys(RunConfig))
SECTIONS = frozenset(key.partition(".")[0] for key in KEYS if "." in key)


def is_setting(name: str) -> bool:
    return name in KEYS


# -- programs ----------------------------------------------------------------------------------------------------------


@cache
def _program() -> Any:
    return get_command(app)


def required_of(verb: str) -> list[str]:
    """Names of what a verb cannot do without."""
    known = _program().commands.get(verb)
    return [parameter.name for parameter in known.params if parameter.required] if known is not None else []


def _problems_of_verb(words: list[str]) -> list[str]:
    program = _program()
    verbs = program.commands
    own = {option for parameter in program.params for option in parameter.opts}
    if words and words[0] in own | {"--help"}:
        return []
    if not words or words[0] not in verbs:
        return [f"spotlight has no command '{' '.join(words[:1])}'"]
    verb, rest = words[0], words[1:]
    options = {option for parameter in verbs[verb].params for option in (*parameter.opts, *parameter.secondary_opts)}
    problems = [f"'{verb}' has no option {option}" for option in _unknown(rest, options | {"--help"}, verb)]
    settings = [word.partition("=")[0] for word in rest if "=" in word and not word.startswith("--")]
    problems += [f"there is no setting '{name}'" for name in settings if not is_setting(name)]
    for option, value in pairwise(rest):
        if option in SHIPPED and value.islower():
            missing = [name for name in value.split("+") if not (ASSETS / SHIPPED[option].format(name)).is_file()]
            problems += [f"the package has no '{name}' for {option}" for name in missing]
    recipe = next(iter(rest), "")
    if verb in TAKES_RECIPE and recipe.islower() and not recipe.startswith("--"):
        problems += [f"there is no recipe '{name}'" for name in recipe.split("+") if name not in recipes()]
    return problems


def _unknown(words: list[str], options: set[str], verb: str) -> Iterator[str]:
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or name in options:
            continue
        key = name.removeprefix("--")
        if not (verb in TAKES_SETTINGS and is_setting(key) and ("." in key or key in PLAIN_KEYS)):
            yield name


def recipes() -> set[str]:
    return {path.stem for path in (ASSETS / "recipes").glob("*.yaml")}


def _problems_of_make(words: list[str]) -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    problems = []
    for word in words:
        name, equals, _ = word.partition("=")
        wanted = rf"^{re.escape(name)} \?=" if equals else rf"^{re.escape(name)}:"
        if not re.search(wanted, makefile, re.MULTILINE):
            problems.append(f"the Makefile has no {'variable' if equals else 'target'} {name}")
    return problems


def _problems_of_benchmark(name: str, words: list[str]) -> list[str]:
    if name == "NAME":
        return []
    if not (ROOT / "benchmarks" / name / "__main__.py").is_file():
        return [f"there is no benchmark '{name}'"]
    options = set(re.findall(r"--[\w-]+", help_of(name)))
    problems = [f"{name} has no option {word}" for word in words if word.startswith("--") and word not in options]
    settings = [word.partition("=")[0] for word in words if "=" in word]
    return problems + [f"there is no setting '{each}'" for each in settings if not is_setting(each)]


def _problems_of_other(words: list[str]) -> Iterator[str]:
    """Files, targets of the Dockerfile and extras of the package that do not exist."""
    for before, word in pairwise(words):
        if word.startswith(("launch/", "docs/")) and not (ROOT / word).exists():
            yield f"there is no file {word}"
        if before == "--target" and f" AS {word}\n" not in (ROOT / "launch/docker/Dockerfile").read_text():
            yield f"the Dockerfile has no target {word}"
        for extra in re.findall(r"^spotlight-rl\[([\w,]+)\]", word):
            extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
            yield from (f"the package has no extra {name}" for name in extra.split(",") if name not in extras)


@cache
def help_of(benchmark: str) -> str:
    """Its --help, in this process."""
    out = StringIO()
    argv = mock.patch.object(sys, "argv", [benchmark, "--help"])
    with argv, redirect_stdout(out), pytest.raises(SystemExit) as stopped:
        runpy.run_module(f"benchmarks.{benchmark}", run_name="__main__")
    assert stopped.value.code == 0, f"python -m benchmarks.{benchmark} --help ended with {stopped.value.code}"
    return out.getvalue()
