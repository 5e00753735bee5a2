"""Installs both wheels into a fresh environment outside of the checkout, and uses them there.

    make dist-check                          # with the Python of `make setup`
    make dist-check PYTHON=python3.13

Checks sizes, content and licences of the wheels; then, in a folder of its own: `doctor`, a shortened demo with its
kills, `audit`, `report`, `export`, `evaluate`, `sample`, the Python API, and user code under `mypy --strict`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
MOST_BYTES = 5_000_000
"""Of the wheel with the code."""
SHORT = (
    "--iterations 2 --eval.every 2 --eval.prompts 12 --rollout.prompts 4 --rollout.group_size 4 --explore.seeds 8 "
    "--market.speed 4 --output.name short"
).split()
USE = """
import spotlight
assert not spotlight.__file__.startswith({root!r}), spotlight.__file__
run = spotlight.open("short")
assert run.status().state == "finished", run.status().state
print([row["value"] for row in run.curve()], run.audit())
"""


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--python", default=sys.executable, help="the Python of the fresh environment")
    options.add_argument("--dist", type=Path, default=ROOT / "dist", help="folder of the two wheels")
    options.add_argument(
        "--folder", type=Path, help="where the environment and the run go; default: deleted afterwards"
    )
    given = options.parse_args()
    code, assets = wheels(given.dist)
    if given.folder is not None:
        given.folder.mkdir(parents=True, exist_ok=True)
        use(given.folder.resolve(), given.python, code, assets)
        return
    with tempfile.TemporaryDirectory(prefix="spotlight-dist-") as folder:
        use(Path(folder), given.python, code, assets)


def wheels(dist: Path) -> tuple[Path, Path]:
    """The wheels of code and assets, with their content checked."""
    code, assets = sorted(dist.glob("spotlight_rl-*.whl"))[-1], sorted(dist.glob("spotlight_rl_assets-*.whl"))[-1]
    for wheel in (code, assets):
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    assert code.stat().st_size < MOST_BYTES, f"{code.name} has more than {MOST_BYTES} bytes"
    held, large = (zipfile.ZipFile(wheel).namelist() for wheel in (code, assets))
    assert "spotlight/py.typed" in held
    assert not [name for name in held if name.endswith((".safetensors", ".onnx"))]
    for names in (held, large):
        assert {"LICENSE", "NOTICE"} <= {Path(name).name for name in names if "/licenses/" in name}
    listed = (ROOT / "src/spotlight/assets/digests.txt").read_text().splitlines()
    assert {f"spotlight_assets/{line.split()[1]}" for line in listed} <= set(large)
    return code, assets


def use(folder: Path, python: str, code: Path, assets: Path) -> None:
    """Install into `folder` and run there."""
    ran([python, "-m", "venv", "--clear", "venv"], folder)
    fresh = folder / "venv" / "bin"
    links = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS", "")
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", str(fresh / "python")]
    ran([*uv, str(code), str(assets)], folder, UV_FIND_LINKS=links)
    ran([str(fresh / "python"), "--version"], folder)
    spotlight = str(fresh / "spotlight")
    ran([spotlight, "doctor"], folder)
    ran([spotlight, "train", *SHORT], folder)
    for verb in ("audit", "report", "export"):
        ran([spotlight, verb, "short"], folder)
    ran([spotlight, "evaluate", "short", "--count", "4", "--steps", "2", "--no-judge"], folder)
    ran([spotlight, "sample", "short", "--prompt", 'the word "river"', "--to", "river.png"], folder)
    status = json.loads(ran([spotlight, "status", "short", "--json"], folder, quiet=True))
    print(f"state {status['state']}, {status['iterations']}")
    ran([str(fresh / "python"), "-c", USE.format(root=str(ROOT))], folder)
    typed = folder / "typed_use.py"
    typed.write_text((ROOT / "tests/user/typed_use.py").read_text())
    ran([sys.executable, "-m", "mypy", "--strict", f"--python-executable={fresh / 'python'}", typed.name], folder)


def ran(command: list[str], folder: Path, quiet: bool = False, **variables: str) -> str:
    """Run it and return its output, which is also shown; a failure ends the check."""
    print(f"$ {' '.join(Path(part).name if part.startswith('/') else part for part in command)}", flush=True)
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(command, cwd=folder, env=clean | variables, stdout=subprocess.PIPE, text=True)
    if not quiet:
        print(done.stdout, end="", flush=True)
    assert done.returncode == 0, f"exit code {done.returncode}"
    return done.stdout


if __name__ == "__main__":
    main()
