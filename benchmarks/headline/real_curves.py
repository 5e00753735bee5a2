"""Clocks of simulations joined with real scores that were computed before, for all machines or by market.

A setup whose plan is fixed and awaited learns the same on all machines, so new profiles change its hours and not its
scores. `run_clocks` simulates the hours with modelled numbers. `joined` replaces the modelled scores of an iteration by
the real ones of the same task and seed: those of `reserved-only` for setups that do not explore, those of ours for
setups that do. The modelled scores show whether that is right: they depend on every preview and rollout, so a setup
whose modelled scores differ from those of `reserved-only` or ours learns otherwise and is left out. A real curve that
ends before its clock ends the run there.
"""

import json
import math
from argparse import Namespace
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec

from benchmarks.headline import cells, figures
from benchmarks.headline.cells import Cell
from benchmarks.headline.market_runs import read_cells, run_task, split
from benchmarks.headline.run import wanted_cells
from benchmarks.headline.setups import BASELINE, EXPLORING, SETUPS
from benchmarks.lib.parallel import run_all
from spotlight.core.errors import InputError

JOINED = (
    "hours and slot-hours were simulated where `computed` says, with modelled numbers; scores had been computed where "
    f"`scores` says: those of {BASELINE} for setups that do not explore, those of ours for setups that do"
)
"""What a joined result says of itself."""
SAME = 1e-9
"""Modelled scores differ by less if only the order of a sum does."""


class RealCurve(NamedTuple):
    """Scores of a task with one setup and seed, and the previews behind them."""

    scores: tuple[tuple[int, float], ...]
    """By iteration."""
    previews: int


_Named: TypeAlias = tuple[str, str, int, RealCurve]
"""Family, setup, seed and their curve."""


class RealCurves(NamedTuple):
    origin: str
    """Where the scores had been computed."""
    of: Mapping[tuple[str, str, int], RealCurve]
    """By family, setup and seed."""


def run_clocks(args: Namespace) -> None:
    """Simulate all cells with modelled numbers; setups that do not explore have one clock for all seeds."""
    args.out.mkdir(parents=True, exist_ok=True)
    clocks = Namespace(**{**vars(args), "numerics": "model"})
    tasks: list[Namespace] = []
    for family, seed in product(args.family, args.seeds):
        setups = [setup for setup in args.setups if setup in EXPLORING or seed == args.seeds[0]]
        tasks += split(clocks, family, seed, wanted_cells(args, setups))
    run_all(run_task, tasks, args.jobs, "clocks")


def present_merged(args: Namespace) -> None:
    """Print and write the figures of these cells, with real scores if `--curves` has them."""
    found = [cells.read(path) for path in args.merge]
    facts: dict[str, object] = {"remembered": args.numbers}
    if args.curves:
        real = read_curves(args.curves)
        found, left_out = joined(found, real, args.ours)
        facts |= {"scores": real.origin, "clocks": JOINED, "left_out": left_out}
    figures.present(found, args.ours, args.out, args.json, **facts)


def checked_cells(args: Namespace) -> list[Cell]:
    """Cells of races with real numbers: those of `--check`, and clocks of modelled races with scores of `--curves`."""
    found = read_cells(args.check) if args.check else []
    if not args.curves:
        return found
    real = read_curves(args.curves)
    clocks = [cell for path in args.merge or [args.out] for cell in read_cells(path)]
    known = {(family, seed) for family, _, seed in real.of}
    shared = [cell for cell in clocks if cell.setup not in EXPLORING]
    ours = [cell for cell in clocks if cell.setup in EXPLORING and (cell.family, cell.seed) in known]
    return [*found, *joined([*shared, *ours], real, args.ours)[0]]


# -- real scores -------------------------------------------------------------------------------------------------------


def read_curves(paths: Sequence[Path]) -> RealCurves:
    """Curves of results of this benchmark, and of folders of cells with real numbers."""
    origins: list[str] = []
    named: list[_Named] = []
    for path in paths:
        origin, found = _curves_of_folder(path) if path.is_dir() else _curves_of_result(path)
        origins.append(origin)
        named += found
    return RealCurves("; ".join(dict.fromkeys(filter(None, origins))), _unique(named))


def _curves_of_folder(folder: Path) -> tuple[str, list[_Named]]:
    real = [cell for cell in read_cells(folder) if cell.numerics == "real"]
    return _origin(real), [(cell.family, cell.setup, cell.seed, _curve(cell)) for cell in real]


def _origin(found: Iterable[Cell]) -> str:
    return "; ".join(sorted({f"{cell.commit} on {cell.hardware}" for cell in found}))


def _curves_of_result(path: Path) -> tuple[str, list[_Named]]:
    try:
        result = json.loads(path.read_text())
        real = [cell for cell in result["cells"] if cell.get("numerics", "real") == "real"]
        named = [(cell["family"], cell["setup"], cell["seed"], _stored(cell)) for cell in real]
        origin = result.get("scores") or "; ".join(filter(None, (*result["computed"], result["remembered"])))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} has no curves of benchmarks.headline ({error!r}); pass a result of it, or a folder of its cells."
        ) from error
    return origin, named


def _curve(cell: Cell) -> RealCurve:
    return RealCurve(tuple((point.iteration, point.score) for point in cell.points), cell.previews)


def _stored(cell: Mapping[str, Any]) -> RealCurve:
    """The curve of a stored cell, whose points by market are text."""
    points = cell["curve"] if "curve" in cell else [line.split(",") for line in cell["points"]]
    return RealCurve(tuple((int(point[0]), float(point[-1])) for point in points), cell["previews"])


def _unique(named: Iterable[_Named]) -> dict[tuple[str, str, int], RealCurve]:
    found: dict[tuple[str, str, int], RealCurve] = {}
    for family, setup, seed, curve in named:
        if found.setdefault((family, setup, seed), curve) != curve:
            raise InputError(
                f"the real scores of {setup} in {family} with seed {seed} depend on the machines, so they cannot be "
                "joined with other clocks; run its cells with --numerics real."
            )
    return found


# -- join --------------------------------------------------------------------------------------------------------------


def joined(clocks: Sequence[Cell], real: RealCurves, ours: str) -> tuple[list[Cell], dict[str, str]]:
    """All cells with real scores, and why other setups have none."""
    left_out = dict.fromkeys(SETUPS, "did not run")
    found: dict[str, Cell] = {}
    for setup in {cell.setup: None for cell in clocks}:
        like = ours if setup in EXPLORING else BASELINE
        mine = [cell for cell in clocks if cell.setup == setup]
        if not all(_learns_alike(cell, clocks, like) for cell in mine):
            if setup == like:
                raise InputError(
                    f"{setup} learned differently on different machines, so no stored curve is its own; "
                    "run it with --numerics real."
                )
            left_out[setup] = f"its learning depends on its machines, or is not that of {like}"
            continue
        del left_out[setup]
        for cell in mine:
            seeds = [cell.seed] if setup in EXPLORING else _seeds(real, cell.family, like)
            for seed in seeds:
                made = _with_scores(cell, real, like, seed)
                found.setdefault(made.name, made)
    return list(found.values()), left_out


def _seeds(real: RealCurves, family: str, setup: str) -> list[int]:
    return sorted(seed for name, other, seed in real.of if (name, other) == (family, setup))


def _learns_alike(cell: Cell, clocks: Sequence[Cell], like: str) -> bool:
    """Whether all runs of `like` with the cell's task and seed have its modelled scores."""
    others = [other for other in clocks if (other.family, other.setup, other.seed) == (cell.family, like, cell.seed)]
    if not others:
        raise InputError(
            f"{cell.name} cannot be compared with {like}, of which no cell has its task and seed; run that too."
        )
    return all(_is_close(_curve(cell), _curve(other)) for other in others)


def _is_close(one: RealCurve, other: RealCurve) -> bool:
    return [at for at, _ in one.scores] == [at for at, _ in other.scores] and all(
        math.isclose(mine, theirs, abs_tol=SAME)
        for (_, mine), (_, theirs) in zip(one.scores, other.scores, strict=True)
    )


def _with_scores(clock: Cell, real: RealCurves, like: str, seed: int) -> Cell:
    curve = real.of.get((clock.family, like, seed))
    if curve is None:
        raise InputError(f"there is no real curve of {like} in {clock.family} with seed {seed}; leave that seed out.")
    points = clock.points[: len(curve.scores)]
    is_whole = len(points) == len(clock.points)
    if [at for at, _ in curve.scores] != [point.iteration for point in points] or (
        is_whole and curve.previews != clock.previews
    ):
        raise InputError(
            f"{clock.name} has {len(clock.points)} evaluations and {clock.previews} previews but the real curve of "
            f"{like} has {len(curve.scores)} and {curve.previews}, so the settings differ; run it with --numerics real."
        )
    scored = tuple(
        msgspec.structs.replace(point, score=score) for point, (_, score) in zip(points, curve.scores, strict=True)
    )
    return msgspec.structs.replace(
        clock, seed=seed, points=scored, previews=curve.previews, iterations=points[-1].iteration, numerics="real"
    )
