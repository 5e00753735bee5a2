"""`spotlight compare`: setups side by side in virtual time, to the scores of a baseline."""

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spotlight.surface.cli import completions
from spotlight.surface.cli.hints import hint
from spotlight.surface.cli.overrides import Overrides, settings_of
from spotlight.surface.json_output import print_json
from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from rich.console import Console

    from spotlight.surface.compare import Comparison, Curve

SETUPS = (
    "reserved-only,reserved-explore,spot-no-explore,on-demand,on-demand-all,on-demand-explore,explore-inline,"
    "spotlight-fixed,spotlight"
)


def compare(
    context: typer.Context,
    task: Annotated[
        str, typer.Argument(help="The recipe that is run in every setup.", autocompletion=completions.recipes)
    ] = "words-large-nft",
    recipes: Annotated[str, typer.Option(help="Setups, between commas; the first is the baseline.")] = SETUPS,
    profile: Annotated[str, typer.Option(help="Durations: a shipped profile or a JSON file.")] = "h200-qwen-image-512",
    trace: Annotated[str | None, typer.Option(help="How spot machines come and go; a+b: two zones.")] = "calm",
    target: Annotated[float | None, typer.Option(help="A score to reach, beside shares of the gain.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds, from 0.")] = 3,
    numerics: Annotated[str, typer.Option(help="model: drawn from a fit; real: a tiny model really trains.")] = "model",
    learning: Annotated[str | None, typer.Option(help="Fit for --numerics model; default by model and loss.")] = None,
    score: Annotated[str | None, typer.Option(help="Held-out score; default the headline one.")] = None,
    overrides: Overrides = None,
    prices: Annotated[Path | None, typer.Option(help="Price table as CSV; default is the shipped one.")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the runs and the picture.")] = Path("runs/compare"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Compare setups in virtual time. Iterations, hours and dollars to the same score; settings as with train."""
    from spotlight.control.market.prices import PriceTable
    from spotlight.control.profiles import Profile
    from spotlight.core.errors import InputError
    from spotlight.surface.cli.progress import PatientProgress
    from spotlight.surface.compare import compare as compared
    from spotlight.surface.compare.plot import draw
    from spotlight.surface.compare.simulated import Contest, named, run_all
    from spotlight.surface.compare.table import show
    from spotlight.surface.simulating import Assumed, NumericsKind
    from spotlight.surface.terminal import terminal

    if target is not None and not math.isfinite(target):
        raise InputError(f"--target is {target}, which is not a finite number; give a score.")
    contest = Contest(
        task=task,
        setups=tuple(named(recipes)),
        seeds=tuple(range(seeds)),
        overrides=tuple(settings_of(overrides, context)),
        assumed=Assumed(profile=Profile.load(profile), prices=PriceTable.load(prices), trace=trace),
        kind=NumericsKind.named(numerics),
        learning=learning,
        folder=out,
    )
    with PatientProgress() as progress:
        curves = run_all(contest, score, progress.report)
    comparison = compared(curves, contest.setups[0])
    picture = out / "compare.png"
    title = f"{task}, {contest.kind.label} on {profile}, trace {trace}"
    draw(curves, contest.setups[0], title, picture, contest.assumed.prices.name)
    if as_json:
        _print_json(comparison, curves, target, picture)
        return
    console = terminal()
    console.print(title, highlight=False)
    show(comparison, console, contest.assumed.prices.name)
    if target is not None:
        _show_target(curves, target, console)
    typer.echo(f"picture: {plain(picture)}")
    hint("list", out, why="the runs behind it")


def _show_target(curves: "list[Curve]", target: float, console: "Console") -> None:
    from spotlight.surface.compare import to_target

    for curve in curves:
        there = to_target(curve, target)
        took = (
            f"{there.iterations:.1f} iterations, {there.hours:.2f} h, ${there.dollars:.2f}" if there else "not reached"
        )
        console.print(f"{curve.score} {target:g}: {curve.setup}, seed {curve.seed}: {took}", highlight=False)


def _print_json(comparison: "Comparison", curves: "list[Curve]", target: float | None, picture: Path) -> None:

    from spotlight.surface.compare import to_target

    reached = {} if target is None else {f"{c.setup} {c.seed}": to_target(c, target) for c in curves}
    found = {"comparison": comparison, "curves": curves, "target": target, "reached": reached, "picture": str(picture)}
    print_json(found)
