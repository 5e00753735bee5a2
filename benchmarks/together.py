"""Is exploration on idle slots and never waiting better together than either alone? Simulated with modelled rewards.

    python benchmarks/together.py [--seeds 0 1 2] [--jobs 2] [--json] [--out docs/results/together]

`words-large-nft` with its own groups of 16 on four reserved slots and 8, 16 or 24 spot slots that stay: previews alone
(`spotlight-fixed`: the default plan, cut off when training ends), overlap alone (`pipelined`), and both
(`spotlight-pipelined`, where the planner splits the time between previews and stale rollouts). A setup's hours and
dollars are those to the final score of `spot-no-explore`. Previewed seeds learn as a model fitted to real runs says; it
knows nothing of stale samples, which learn a little less (benchmarks/asynchrony.py, benchmarks/headline.py): of the two
halves, the second is flattered.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from statistics import median
from typing import NamedTuple

from provenance import provenance
from rich.console import Console
from rich.table import Table

from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.surface.compare import Curve, to_target
from spotlight.surface.compare.simulated import Contest, run_all
from spotlight.surface.simulating import Assumed, NumericsKind

TASK = "words-large-nft"
BASELINE, TOGETHER = "spot-no-explore", "spotlight-pipelined"
ALONE = {"exploring": "spotlight-fixed", "overlapping": "pipelined"}
PROFILES = ("h200-qwen-image-512", "h200-qwen-image-1280")
SPOT = (8, 16, 24)
SHARES = (0.5, 1.0)
"""Of the baseline's gain."""


class Cell(NamedTuple):
    """One fleet at one picture size."""

    profile: str
    spot: int
    seed: int

    @property
    def name(self) -> str:
        return f"{self.profile.rpartition('-')[2]}_4_{self.spot}"


class Ratio(NamedTuple):
    """What one half alone took, over what both took together."""

    cell: Cell
    alone: str
    share: float
    iterations: float
    hours: float
    dollars: float


def ratios(cell: Cell) -> list[Ratio]:
    with tempfile.TemporaryDirectory() as folder:
        contest = Contest(
            task=TASK,
            setups=(BASELINE, *ALONE.values(), TOGETHER),
            seeds=(cell.seed,),
            overrides=(f"cluster.spot={cell.spot}",),
            assumed=Assumed(profile=Profile.load(cell.profile), prices=PriceTable.load(None)),
            kind=NumericsKind.MODEL,
            learning=None,
            folder=Path(folder),
        )
        curves = {curve.setup: curve for curve in run_all(contest, None, lambda *_: None)}
    return [ratio(cell, curves, half, share) for half, share in product(ALONE, SHARES)]


def ratio(cell: Cell, curves: dict[str, Curve], half: str, share: float) -> Ratio:
    base = curves[BASELINE]
    target = base.first + share * (base.final - base.first)
    alone, both = to_target(curves[ALONE[half]], target), to_target(curves[TOGETHER], target)
    if alone is None or both is None:
        raise ValueError(f"{cell} does not come to {target:.3f} in its iterations; give it more.")
    return Ratio(
        cell, half, share, alone.iterations / both.iterations, alone.hours / both.hours, alone.dollars / both.dollars
    )


def figures_of(found: Sequence[Ratio]) -> dict[str, dict[str, float | str]]:
    """By fleet, the median of the seeds."""
    figures: dict[str, dict[str, float | str]] = {}
    for name, half, share in dict.fromkeys((one.cell.name, one.alone, one.share) for one in found):
        group = [one for one in found if (one.cell.name, one.alone, one.share) == (name, half, share)]
        for what in ("iterations", "hours", "dollars"):
            values = sorted(getattr(one, what) for one in group)
            suffix = "" if share == 1 else f"_at_{share * 100:.0f}"
            figures[f"{what}_vs_{half}_{name}{suffix}"] = {
                "value": median(values),
                "low": values[0],
                "high": values[-1],
                "unit": f"times those of both together, {half} alone; simulated with modelled rewards",
            }
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--profiles", nargs="+", default=list(PROFILES))
    parser.add_argument("--spot", type=int, nargs="+", default=list(SPOT))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("runs/together"))
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    args = parser.parse_args()
    cells = [Cell(*each) for each in product(args.profiles, args.spot, args.seeds)]
    found: list[Ratio] = []
    progress = Console(stderr=True)
    with ProcessPoolExecutor(args.jobs) as executor:
        for cell, some in zip(cells, executor.map(ratios, cells), strict=True):
            progress.print(f"{cell.name}, seed {cell.seed}", highlight=False)
            found += some
    result = {"benchmark": "together", **provenance(), "seeds": args.seeds, "figures": figures_of(found)}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    table = Table("figure", "value", "low", "high")
    for name, one in result["figures"].items():
        table.add_row(name, *(f"{one[key]:.2f}" for key in ("value", "low", "high")))
    Console().print(table)
    if args.json:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
