"""One simulated run for each cell of the headline: one setup of a task, with one seed, profile and trace."""

import shutil
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.headline import cells
from benchmarks.headline.cells import Cell
from benchmarks.headline.setups import EXPLORING, MARKET, STEADY, TASKS, WITHOUT_SPOT, changes_of, fit_of, recipe_of
from benchmarks.lib import merge
from benchmarks.lib.provenance import provenance
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Trace
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError
from spotlight.folder import config_digest
from spotlight.sim.learning import LearningModel
from spotlight.sim.memory import subject_of
from spotlight.sim.numerics import Numerics
from spotlight.surface.compare.simulated import Contest, run_one
from spotlight.surface.simulating import Assumed, NumericsKind, numerics_for

console = Console(stderr=True)


def run_seed(args: Namespace, seed: int) -> None:
    """Run all cells of one family and seed, with shared numbers."""
    run_cells(args, seed, wanted_cells(args, args.setups))


def wanted_cells(args: Namespace, setups: Sequence[str]) -> list[tuple[str, str, str]]:
    """Cells (profile, trace, setup) of these setups; those without spot machines have one trace."""
    return [
        (profile, trace, setup)
        for setup in setups
        for profile in args.profiles
        for trace in ([STEADY] if setup in WITHOUT_SPOT else args.traces)
    ]


def run_cells(args: Namespace, seed: int, wanted: Sequence[tuple[str, str, str]]) -> None:
    """Run the cells (profile, trace, setup) that have no file; they share numbers."""
    contests = {cell: contest_of(args, *cell, seed) for cell in wanted}
    open_cells = [cell for cell in wanted if not is_done(args, contests[cell], *cell, seed)]
    if not open_cells:
        return
    by_numbers: dict[str, list[tuple[str, str, str]]] = {}
    for cell in open_cells:
        by_numbers.setdefault(numbers_of(contests[cell], cell[2], seed), []).append(cell)
    for numbers, alike in by_numbers.items():
        remembered = args.remember / f"{args.family}-seed{seed}-{numbers}.msgpack" if args.remember else None
        if remembered:
            remembered.parent.mkdir(parents=True, exist_ok=True)
        contest = contests[alike[0]]
        first = contest.config(recipe_of(alike[0][2]), seed)
        with numerics_for(NumericsKind(args.numerics), first, contest.learning, remembered) as numerics:
            for cell in alike:
                run_cell(args, contests[cell], *cell, seed, numerics)


def numbers_of(contest: Contest, setup: str, seed: int) -> str:
    """Name of the numbers that a cell shares with others: its fit, or the digest of the settings that train it.

    Setups that explore train with other settings than the others, so each kind has numbers of its own.
    """
    return contest.learning or subject_of(contest.config(recipe_of(setup), seed))


def is_done(args: Namespace, contest: Contest, profile: str, trace: str, setup: str, seed: int) -> bool:
    """Whether the cell's file exists; one with other settings or numbers is refused."""
    path = args.out / f"{cell_name(args.family, profile, trace, setup, seed)}.json"
    if not path.exists():
        return False
    cell, settings = cells.read(path), settings_of(contest, setup, seed)
    if (cell.numerics, cell.settings or settings) != (args.numerics, settings):
        raise InputError(f"{path} was made with other settings or numbers; choose another --out, or delete it.")
    return True


def settings_of(contest: Contest, setup: str, seed: int) -> str:
    """Digest of the settings; files of traces and fits count by their content, wherever they are."""
    found = contest.config(recipe_of(setup), seed).model_dump(mode="json")
    if contest.assumed.trace is not None:
        found["market"]["trace"] = digest_of(contest.assumed.trace)
    if contest.learning is not None:
        found["learning"] = msgspec.to_builtins(LearningModel.load(contest.learning), str_keys=True)
    return config_digest(found)


def contest_of(args: Namespace, profile: str, trace: str, setup: str, seed: int) -> Contest:
    task = TASKS[args.family]
    name, _, hour = trace.partition("@")
    batches = () if args.same_batches else task.batches
    exploring = (*task.exploring, *batches) if setup in EXPLORING else ()
    changes = [*task.common, *exploring, *changes_of(setup), f"model.device={args.device}"]
    if trace != STEADY:
        changes += [*MARKET, f"market.start_h={hour or 0}"]
    return Contest(
        task=task.recipe,
        setups=(recipe_of(setup),),
        seeds=(seed,),
        overrides=(*changes, *(each for each in args.overrides if not (setup in WITHOUT_SPOT and is_spot(each)))),
        assumed=Assumed(
            profile=Profile.load(profile), prices=PriceTable.load(None), trace=None if trace == STEADY else name
        ),
        kind=NumericsKind(args.numerics),
        learning=learning_of(args, setup, seed),
        folder=args.out / "runs" / cell_name(args.family, profile, trace, setup, seed),
    )


def learning_of(args: Namespace, setup: str, seed: int) -> str | None:
    """The fit of modelled numbers; None with real ones, and the recipe's own with batches that no fit is of."""
    return str(fit_of(args.family, setup, seed)) if args.numerics == "model" and not args.same_batches else None


def is_spot(override: str) -> bool:
    """Whether an override sets the number of spot slots, which setups without spot ignore."""
    return override.startswith("cluster.spot=")


def run_cell(
    args: Namespace, contest: Contest, profile: str, trace: str, setup: str, seed: int, numerics: Numerics
) -> None:
    began, worked, name = time.monotonic(), time.process_time(), cell_name(args.family, profile, trace, setup, seed)
    # A run that was interrupted cannot be resumed.
    shutil.rmtree(contest.folder, ignore_errors=True)
    recipe = recipe_of(setup)
    folder = run_one(contest, recipe, contest.config(recipe, seed), numerics, lambda *_: None)
    found = cells.read_run(folder)
    cell = Cell(
        family=args.family,
        setup=setup,
        seed=seed,
        profile=profile,
        profile_digest=contest.assumed.profile.digest,
        trace=stem(trace),
        trace_digest="" if contest.assumed.trace is None else digest_of(contest.assumed.trace),
        iterations=found.iterations,
        losses=found.losses,
        previews=found.previews,
        points=found.points,
        seconds=time.monotonic() - began,
        processor_s=time.process_time() - worked,
        numerics=str(args.numerics),
        settings=settings_of(contest, setup, seed),
        **provenance(),
    )
    merge.write(args.out / f"{name}.json", cell)
    # A journal of thousands of previews is large, and only the curve is needed.
    shutil.rmtree(contest.folder)
    last = cell.points[-1]
    console.print(
        f"{name}: {last.score:.3f} after {last.iteration} iterations and {last.hours:.2f} h, {cell.losses} losses, "
        f"{cell.previews} previews; {cell.seconds:.0f} s",
        highlight=False,
        soft_wrap=True,
    )


def digest_of(trace: str) -> str:
    """Digest of a trace, or of several that are joined."""
    return "+".join(Trace.load(part).digest for part in trace.split("+"))


def stem(trace: str) -> str:
    """The trace without folders."""
    name, _, hour = trace.partition("@")
    return "+".join(Path(part).stem for part in name.split("+")) + (f"@{hour}" if hour else "")


def cell_name(family: str, profile: str, trace: str, setup: str, seed: int) -> str:
    return f"{family}-{profile}-{stem(trace)}-{setup}-seed{seed}"
