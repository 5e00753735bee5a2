"""The image of launch/docker/Dockerfile: its instructions, and what they install."""

import os
import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from document_commands import ROOT
from launch_files import TEMPLATES, copied, instructions, pods, runs, text

KUBERNETES = [name for name in TEMPLATES if name.startswith("kube")]

INSTRUCTIONS = {"FROM", "RUN", "COPY", "WORKDIR", "ARG", "ENV", "USER", "ENTRYPOINT", "CMD"}


def test_image_is_made_of_known_instructions_stages_and_files_and_extras_of_the_package():
    found = instructions("docker/Dockerfile")
    assert {name for name, _ in found} <= INSTRUCTIONS
    stages = [rest.split(" AS ") for name, rest in found if name == "FROM"]
    names = [name for _, name in stages]
    assert [base for base, _ in stages] == ["python:3.12-slim", "cpu"]
    built = re.findall(r"docker build .*--target (\w+) +-t spotlight:(\w+)", text("docker/Dockerfile"))
    assert {target for target, _ in built} == set(names)
    assert [path for path in copied("docker/Dockerfile") if not (ROOT / path).exists()] == []
    used = {container.image for name in KUBERNETES for pod, _ in pods(name) for container in pod.containers}
    assert used <= {f"spotlight:{tag}" for _, tag in built}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = ",".join(re.findall(r"EXTRAS=([\w,]+)", text("docker/Dockerfile"))).split(",")
    assert set(extras) <= set(project["optional-dependencies"])


def test_image_runs_as_the_user_of_the_pods_and_under_an_init():
    found = instructions("docker/Dockerfile")
    users = [rest for name, rest in found if name == "USER"]
    assert users[-1] == "spotlight"
    (uid,) = re.findall(r"useradd .*--uid (\d+)", text("docker/Dockerfile"))
    assert {pod.securityContext.runAsUser for name in KUBERNETES for pod, _ in pods(name)} == {int(uid)}
    assert ("ENTRYPOINT", '["tini", "--"]') in found


@contextmanager
def chroot(folder: Path) -> Iterator[Path]:
    """A copy of this system to write to, without its people; skipped where the kernel or the user cannot make one."""
    parts = {name: folder / name for name in ("upper", "work", "root")}
    for part in parts.values():
        part.mkdir()
    options = f"lowerdir=/,upperdir={parts['upper']},workdir={parts['work']}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(parts["root"])]
    mounted = subprocess.run(mount, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no chroot can be made here: {mounted.stderr.strip()}")
    try:
        for file in (parts["root"] / "etc" / "passwd", parts["root"] / "etc" / "group"):
            lines = file.read_text().splitlines(keepends=True)
            file.write_text("".join(line for line in lines if not 1000 <= int(line.split(":")[2]) < 60000))
        yield parts["root"]
    finally:
        subprocess.run(["umount", str(parts["root"])], check=True)


@pytest.mark.slow
def test_image_s_other_steps_give_their_programs_user_and_folder_in_a_chroot(tmp_path):
    steps = [line for line in runs("docker/Dockerfile") if not line.startswith("pip install")]
    assert len(steps) == len(runs("docker/Dockerfile")) - 1
    # An index that is there is good enough where the system cannot check its signature; it stays for the next step.
    update = "(apt-get update || ls /var/lib/apt/lists/*Packages* > /dev/null)"
    cleaned = {"apt-get update": update, " && rm -rf /var/lib/apt/lists/*": ""}
    with chroot(tmp_path) as root:
        for step in steps:
            script = step
            for part, other in cleaned.items():
                script = script.replace(part, other)
            ran = subprocess.run(["chroot", root, "sh", "-c", script], capture_output=True, text=True)
            if re.search("Unable to fetch|Failed to fetch|Unable to locate", ran.stderr):
                pytest.skip(f"this machine has no packages to install: {ran.stderr[-200:]}")
            assert ran.returncode == 0, (step, ran.stderr)
        check = "command -v tini wget gcc g++ && id -u spotlight && stat -c %U /data"
        found = subprocess.run(["chroot", root, "sh", "-c", check], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split()[-2:] == ["1000", "spotlight"]


@pytest.mark.slow
def test_image_s_installation_gives_a_command_line_that_works_outside_of_the_repository(tmp_path):
    """Its own pip line, on its own copy of the files, in a fresh environment; dependencies are those of this one."""
    source = tmp_path / "spotlight"
    source.mkdir()
    subprocess.run(["cp", "-r", *(str(ROOT / path) for path in copied("docker/Dockerfile")), str(source)], check=True)
    venv.create(tmp_path / "venv", with_pip=True)
    (line,) = [line for line in runs("docker/Dockerfile") if line.startswith("pip install")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    clean |= {"PATH": f"{tmp_path / 'venv' / 'bin'}:{os.environ['PATH']}", "EXTRAS": "data"}
    installed = subprocess.run(
        ["sh", "-c", line.replace("pip install", "pip install --no-deps")], cwd=source, env=clean, capture_output=True
    )
    assert installed.returncode == 0, installed.stderr.decode()
    (site,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    others = next(path for path in sys.path if path.endswith("site-packages"))
    (site / "dependencies.pth").write_text(others)
    script = "import spotlight, spotlight.node.worker; print(spotlight.__file__)"
    imported = subprocess.run(["python", "-c", script], cwd=tmp_path, env=clean, capture_output=True, text=True)
    assert imported.stdout.strip() == str(site / "spotlight" / "__init__.py"), imported.stderr
    for command in (["--help"], ["join", "--help"], ["train", "words-nft", "--dry-run"]):
        ran = subprocess.run(["spotlight", *command], cwd=tmp_path, env=clean, capture_output=True, text=True)
        assert ran.returncode == 0, (command, ran.stderr)
