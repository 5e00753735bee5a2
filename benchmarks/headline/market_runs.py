"""The cells of the races over many markets, each in one of several processes.

With modelled numbers every cell is a task. Real numbers of one task and seed are computed once and kept in memory, so
there all cells of a task and seed are one task. Races that held hardly any spot slots are run again with stand-ins.
"""

from argparse import Namespace
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from benchmarks.headline import cells
from benchmarks.headline.cells import Cell
from benchmarks.headline.figures import SWEPT_SEEDS
from benchmarks.headline.market_check import check_figures
from benchmarks.headline.market_figures import figures_of, market_races
from benchmarks.headline.market_windows import MarketClass, MarketWindow, at_hours, drawn, listed
from benchmarks.headline.run import run_cells, stem
from benchmarks.headline.setups import BASELINE, FALLBACK, STEADY, WITHOUT_SPOT
from benchmarks.lib.parallel import run_all
from benchmarks.lib.report import publish, summary_of
from spotlight.core.errors import InputError

RACERS = (BASELINE, "reserved-explore", "on-demand-explore", "spot-no-explore")
"""Setups of every race beside ours; those without spot machines are shared by all markets."""
INLINE = "explore-inline"
"""Runs with steady capacity only, for the factors behind the gain."""
HELPED = (MarketClass.NONE, MarketClass.SCARCE, MarketClass.PARTIAL)
"""Classes that are run again with stand-ins."""


def windows_of(args: Namespace) -> list[MarketWindow]:
    given = [args.offsets is not None, args.windows is not None, args.draw is not None]
    if sum(given) != 1:
        raise InputError("--markets needs exactly one of --offsets, --windows and --draw; give one.")
    if args.windows is not None:
        return listed(args.windows)
    if args.offsets is not None:
        return at_hours(args.markets, args.files, args.offsets)
    return drawn(args.markets, args.files, args.draw, args.draw_seed)


def run_markets(args: Namespace) -> None:
    traces = [window.trace(args.markets) for window in windows_of(args)]
    args.out.mkdir(parents=True, exist_ok=True)
    run_all(run_task, tasks_of(args, traces), args.jobs, "cells")
    run_all(run_task, fallback_tasks(args, traces, read_cells(args.out)), args.jobs, "with stand-ins")


def run_task(task: Namespace) -> None:
    run_cells(task, task.seed, task.wanted)


def tasks_of(args: Namespace, traces: Sequence[str]) -> list[Namespace]:
    """All tasks; ours and inline previews run with steady capacity too.

    A setup that does not explore runs with the first seed only: other seeds have the same clock (`completed`).
    """
    alone = [*(setup for setup in RACERS if setup in WITHOUT_SPOT), args.ours, INLINE]
    clocks = [setup for setup in RACERS if setup not in WITHOUT_SPOT]
    tasks: list[Namespace] = []
    for family, seed in product(sorted(args.family), args.seeds):
        raced = [args.ours, *(clocks if seed == args.seeds[0] else ())]
        wanted = [*product(args.profiles, [STEADY], alone), *product(args.profiles, traces, raced)]
        tasks += split(args, family, seed, wanted)
    return tasks


def split(args: Namespace, family: str, seed: int, wanted: Sequence[tuple[str, str, str]]) -> list[Namespace]:
    """Tasks of these cells (profile, trace, setup): one each, or one of all with real numbers."""
    parts = [[cell] for cell in wanted] if args.numerics == "model" else [list(wanted)]
    return [Namespace(**{**vars(args), "family": family, "seed": seed, "wanted": part}) for part in parts if part]


def fallback_tasks(args: Namespace, traces: Sequence[str], found: Sequence[Cell]) -> list[Namespace]:
    """Ours with stand-ins, in the races that lacked spot slots without."""
    by_name = {stem(trace): trace for trace in traces}
    tasks: list[Namespace] = []
    field = [race for race in market_races(found, args.ours) if race.trace in by_name and race.market in HELPED]
    for family, seed in product(sorted(args.family), args.seeds):
        wanted = [
            (race.profile, by_name[race.trace], f"{args.ours}{FALLBACK}")
            for race in field
            if (race.family, race.seed) == (family, seed)
        ]
        tasks += split(args, family, seed, wanted)
    return tasks


def read_cells(folder: Path) -> list[Cell]:
    return [cells.read(path) for path in sorted(folder.glob("*.json"))]


def present(paths: Sequence[Path], checked: Sequence[Cell], args: Namespace) -> None:
    """Print and write the figures of these cells and of those with real numbers, and the cells with slot-hours of every
    evaluation."""
    found = [cell for path in paths for cell in (read_cells(path) if path.is_dir() else [cells.read(path)])]
    seeds = sorted({cell.seed for cell in found})
    summary = summary_of(
        args.out.stem,
        figures_of(found, args.ours) | (check_figures(found, checked, args.ours) if checked else {}),
        seeds,
        ours=args.ours,
        computed=sorted({f"{cell.commit} on {cell.hardware}" for cell in (*found, *checked)}),
        remembered=args.numbers,
        seeds_settings_were_chosen_with=sorted(SWEPT_SEEDS.intersection(seeds)),
        processor_minutes=round(sum(cell.processor_s for cell in found) / 60, 1),
        composed="setups without exploration ran with one seed; others have its clock and the scores of reserved-only",
        points="iteration,hours,reserved_slot_hours,spot_slot_hours,score",
    )
    real = curves_among(checked, args.ours) if args.curves else checked
    publish(summary, args.out, args.json, cells=[shown(cell) for cell in (*found, *real)])


def curves_among(checked: Sequence[Cell], ours: str) -> list[Cell]:
    """One cell for each real curve; the others have the same scores and the clocks of modelled cells."""
    curves: dict[tuple[str, str, int], Cell] = {}
    for cell in checked:
        if cell.setup in (BASELINE, ours) and cell.trace == STEADY:
            curves.setdefault((cell.family, cell.setup, cell.seed), cell)
    return list(curves.values())


def shown(cell: Cell) -> dict[str, object]:
    """A cell with what costs can be recomputed from; an evaluation is one line."""
    names = ("family", "setup", "seed", "profile", "profile_digest", "trace", "trace_digest", "numerics")
    return {
        **{name: getattr(cell, name) for name in (*names, "losses", "previews", "iterations")},
        "points": [
            f"{point.iteration},{point.hours:.4f},{point.reserved_hours:.4f},{point.spot_hours:.4f},{point.score:.4f}"
            for point in cell.points
        ],
    }
