"""Whole processes of the command line, timed by the processor seconds that they take."""

import resource
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import spotlight
from benchmarks.lib.figures import Figure
from spotlight.core.snapshots import write_snapshot
from spotlight.surface.kept_view import latest, part_name

PROFILE, TRACE = "h200-qwen-image-512", "calm"
RECIPE = "words-nft"
SETTINGS = {
    "rollout.prompts": 8, "rollout.group_size": 16, "rollout.steps": 4, "eval.every": 5, "eval.prompts": 16,
    "explore.seeds": 16, "cluster.reserved": 4, "cluster.spot": 8,
}  # fmt: skip
IMPORTS = ("-c", "import typer, rich")
COMMAND = ("-P", "-m", "spotlight.surface.cli.main")
SECONDS = "processor seconds"


class Round(NamedTuple):
    """Processor seconds of one process each."""

    imports: float
    help: float
    status: float


def measure(iterations: int, rounds: int) -> tuple[dict[str, Figure], dict[str, object]]:
    """Figures over the rounds, and the settings of the run."""
    with TemporaryDirectory(prefix="cli-") as folder:
        records, run = _simulated(Path(folder), iterations)
        # The first processes read the modules from disk.
        _round(run)
        found = [_round(run) for _ in range(rounds)]
    figures = {
        "help_vs_imports": Figure.median([each.help / each.imports for each in found], "times the imports"),
        "status_vs_help": Figure.median([each.status / each.help for each in found], "times the help"),
        "imports_s": Figure.median([each.imports for each in found], f"{SECONDS} of `import typer, rich`"),
        "help_s": Figure.median([each.help for each in found], f"{SECONDS} of `spotlight --help`"),
        "status_s": Figure.median([each.status for each in found], f"{SECONDS} of `spotlight status`"),
        "records": Figure.single(float(records), "records in the journal of the run"),
    }
    return figures, {"recipe": RECIPE, "iterations": iterations, "profile": PROFILE, "trace": TRACE, **SETTINGS}


def _simulated(folder: Path, iterations: int) -> tuple[int, Path]:
    """A run of so many iterations with a snapshot of its end, as `spotlight train` leaves one; and its records."""
    print(f"simulating {iterations} iterations", file=sys.stderr, flush=True)
    recipe = spotlight.load_recipe(RECIPE, SETTINGS | {"output.folder": str(folder)}, iterations=iterations)
    run = spotlight.simulate(recipe, PROFILE, trace=TRACE)
    view = latest(run.path / "journal")
    write_snapshot(run.path / "journal", view.seq, {part_name(): view.to_bytes()})
    return view.seq + 1, run.path


def _round(run: Path) -> Round:
    return Round(
        imports=_seconds(IMPORTS), help=_seconds((*COMMAND, "--help")), status=_seconds((*COMMAND, "status", str(run)))
    )


def _seconds(arguments: Sequence[str]) -> float:
    """Processor seconds of a Python process with these arguments."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
