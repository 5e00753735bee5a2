"""In which batches is learning quickest, with previews and without? Prompts, updates and previews, co-simulated.

    python -m benchmarks.batches --family scenes --seeds 0 1 --device cuda [--only NAME ...] --out runs/batches
    python -m benchmarks.batches --merge runs/batches --out docs/results/batches [--onto docs/results/batches.json]

Every variant is a setup of benchmarks/headline/ with other settings, at 512 under the shipped calm trace. A figure is
the hours in which `reserved-only` with its own settings comes to its final score, over the variant's hours to that
score: the geometric mean over seeds, from the least to the most. A variant that does not come there counts with all its
hours, which flatters it, and the unit says how many did not. Cells are kept under --out and are not run twice; with
--onto an earlier result still tells of variants that have no cells any more.
"""

import argparse
import json
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.headline import cells as headline_cells
from benchmarks.headline import run as headline
from benchmarks.headline.figures import BASELINE, PRICED, Figure, Race, figure, speedup
from benchmarks.lib.provenance import provenance
from spotlight.control.market.prices import PriceTable

PROFILE, TRACE = "h200-qwen-image-512", "calm@0.5"
EXPLORING, PIPELINED = "spotlight-fixed", "spotlight-pipelined"


class Variant(NamedTuple):
    """A setup, and what it has beside the settings of the headline's task; None is the task's own."""

    setup: str
    prompts: int | None = None
    updates: int | None = None
    ema: float | None = None
    previews: tuple[int, int] | None = None
    """Seeds and steps."""
    stale_share: float | None = None
    iterations: int | None = None
    candidates: tuple[float, int] | None = None
    """For each prompt that is rolled out, and the seeds of each that choose among them."""
    group_size: int | None = None
    lr: float | None = None
    kl: float | None = None
    timesteps: int | None = None
    behaviour: float | None = None
    """How slowly the policy that rolls out follows."""
    evaluated: int | None = None
    """Every so many iterations."""

    @property
    def settings(self) -> list[str]:
        seeds, steps = self.previews or (None, None)
        candidates, scouts = self.candidates or (None, None)
        told = {
            "rollout.prompts": self.prompts,
            "train.updates_per_iteration": self.updates,
            "train.ema_decay": self.ema,
            "explore.seeds": seeds,
            "explore.steps": steps,
            "explore.candidates": candidates,
            "explore.scouts": scouts,
            "rollout.group_size": self.group_size,
            "train.lr": self.lr,
            "algorithm.kl_weight": self.kl,
            "algorithm.timesteps_per_sample": self.timesteps,
            "algorithm.old_decay": self.behaviour,
            "eval.every": self.evaluated,
            "pipeline.stale_share": self.stale_share,
            "iterations": self.iterations,
        }
        return [f"{key}={value}" for key, value in told.items() if value is not None]


EARLIER = "over an earlier run of the baseline"
OWN = "own"
"""The variant that others are compared with."""
VARIANTS = {
    "words-large": {
        OWN: Variant(BASELINE),
        "plain-16-prompts": Variant(BASELINE, prompts=16, iterations=110),
        "plain-4-updates": Variant(BASELINE, updates=4),
        "plain-4-updates-slow-average": Variant(BASELINE, updates=4, ema=0.95),
        "24x3": Variant(EXPLORING),
        "12x6": Variant(EXPLORING, previews=(12, 6)),
        "12x10": Variant(EXPLORING, previews=(12, 10)),
        "8x10": Variant(EXPLORING, previews=(8, 10)),
        "16x5": Variant(EXPLORING, previews=(16, 5)),
        "12x10-stale": Variant(PIPELINED, previews=(12, 10), stale_share=1.0),
        "16x10-stale": Variant(PIPELINED, previews=(16, 10), stale_share=1.0),
        "24x3-4-updates": Variant(EXPLORING, updates=4),
        "16x5-4-updates": Variant(EXPLORING, updates=4, ema=0.94, previews=(16, 5)),
        "24x3-16-prompts": Variant(EXPLORING, prompts=16, iterations=60),
        "32x3-16-prompts": Variant(EXPLORING, prompts=16, previews=(32, 3), iterations=50),
        "16x5-16-prompts": Variant(EXPLORING, prompts=16, previews=(16, 5), iterations=50),
        "16x5-16-prompts-4-updates": Variant(
            EXPLORING, prompts=16, updates=4, ema=0.94, previews=(16, 5), iterations=45
        ),
        "plain-7e-5": Variant(BASELINE, lr=7e-5),
        "plain-2e-4": Variant(BASELINE, lr=2e-4),
        "16x5-16-prompts-2e-4": Variant(EXPLORING, prompts=16, previews=(16, 5), iterations=45, lr=2e-4),
        "16x5-24-prompts-pairs": Variant(EXPLORING, prompts=24, previews=(16, 5), iterations=50, group_size=2),
        "16x5-16-of-32-prompts": Variant(
            EXPLORING, prompts=16, previews=(16, 5), candidates=(2, 4), iterations=50, evaluated=10
        ),
        "16x5-16-of-32-prompts-2e-4": Variant(
            EXPLORING, prompts=16, previews=(16, 5), candidates=(2, 4), iterations=40, lr=2e-4
        ),
        "16x5-16-of-32-prompts-7e-5": Variant(
            EXPLORING, prompts=16, previews=(16, 5), candidates=(2, 4), iterations=50, lr=7e-5, evaluated=10
        ),
        "16x5-16-of-48-prompts": Variant(
            EXPLORING, prompts=16, previews=(16, 5), candidates=(3, 4), iterations=45, evaluated=10
        ),
        "12x5-12-of-24-prompts": Variant(EXPLORING, prompts=12, previews=(12, 5), candidates=(2, 4), iterations=60),
        "32x3-16-of-32-prompts": Variant(EXPLORING, prompts=16, previews=(32, 3), candidates=(2, 8), iterations=45),
        "24x3-24-of-36-prompts-3-updates": Variant(
            EXPLORING, prompts=24, updates=3, ema=0.93, previews=(24, 3), candidates=(1.5, 6), iterations=45
        ),
        "12x5-24-of-36-prompts-pairs": Variant(
            EXPLORING, prompts=24, previews=(12, 5), candidates=(1.5, 4), iterations=50, group_size=2, evaluated=10
        ),
        "16x5-24-of-48-prompts-pairs": Variant(
            EXPLORING, prompts=24, previews=(16, 5), candidates=(2, 4), iterations=45, group_size=2, evaluated=10
        ),
        "16x5-24-of-48-prompts-pairs-7e-5": Variant(
            EXPLORING,
            prompts=24,
            previews=(16, 5),
            candidates=(2, 4),
            iterations=45,
            group_size=2,
            lr=7e-5,
            evaluated=10,
        ),
        "24x3-24-prompts-3-updates": Variant(EXPLORING, prompts=24, updates=3, ema=0.93, iterations=45),
        "24x4-24-prompts-4-updates": Variant(
            EXPLORING, prompts=24, updates=4, ema=0.94, previews=(24, 4), iterations=40
        ),
        "16x5-24-prompts-4-updates": Variant(
            EXPLORING, prompts=24, updates=4, ema=0.94, previews=(16, 5), iterations=40
        ),
        "16x5-16-of-32-prompts-1-timestep": Variant(
            EXPLORING, prompts=16, previews=(16, 5), candidates=(2, 4), iterations=50, timesteps=1, evaluated=10
        ),
        "12x5-16-of-32-prompts-1-timestep": Variant(
            EXPLORING, prompts=16, previews=(12, 5), candidates=(2, 4), iterations=50, timesteps=1, evaluated=10
        ),
        "12x5-24-of-48-prompts-1-timestep": Variant(
            EXPLORING, prompts=24, previews=(12, 5), candidates=(2, 4), iterations=50, timesteps=1, evaluated=10
        ),
        "16x5-12-of-24-prompts-3-timesteps": Variant(
            EXPLORING, prompts=12, previews=(16, 5), candidates=(2, 4), iterations=50, timesteps=3, evaluated=10
        ),
        "16x5-12-of-24-prompts-4-timesteps": Variant(
            EXPLORING, prompts=12, previews=(16, 5), candidates=(2, 4), iterations=50, timesteps=4, evaluated=10
        ),
        "16x5-8-of-16-prompts-4-timesteps": Variant(
            EXPLORING, prompts=8, previews=(16, 5), candidates=(2, 4), iterations=50, timesteps=4, evaluated=10
        ),
    },
    "scenes": {
        OWN: Variant(BASELINE),
        "plain-24-prompts": Variant(BASELINE, prompts=24, iterations=110),
        "plain-8-updates": Variant(BASELINE, updates=8),
        "plain-8-updates-slow-average": Variant(BASELINE, updates=8, ema=0.96),
        "24x4": Variant(EXPLORING),
        "12x6": Variant(EXPLORING, previews=(12, 6)),
        "16x6": Variant(EXPLORING, previews=(16, 6)),
        "12x10": Variant(EXPLORING, previews=(12, 10)),
        "8x10": Variant(EXPLORING, previews=(8, 10)),
        "12x10-stale": Variant(PIPELINED, previews=(12, 10), stale_share=1.0),
        "16x10-stale": Variant(PIPELINED, previews=(16, 10), stale_share=1.0),
        "24x4-8-updates": Variant(EXPLORING, updates=8),
        "24x4-8-updates-slow-average": Variant(EXPLORING, updates=8, ema=0.96, iterations=45),
        "16x6-8-updates": Variant(EXPLORING, updates=8, ema=0.96, previews=(16, 6), iterations=45),
        "12x10-8-updates": Variant(EXPLORING, updates=8, ema=0.95, previews=(12, 10), iterations=45),
        "24x4-24-prompts": Variant(EXPLORING, prompts=24, iterations=75),
        "24x6-24-prompts": Variant(EXPLORING, prompts=24, updates=4, ema=0.95, previews=(24, 6), iterations=75),
        "16x6-24-prompts-8-updates": Variant(
            EXPLORING, prompts=24, updates=8, ema=0.96, previews=(16, 6), iterations=75
        ),
        "plain-1e-4": Variant(BASELINE, lr=1e-4),
        "plain-32-prompts": Variant(BASELINE, prompts=32, ema=0.92, iterations=90),
        "24x4-32-prompts-8-updates-1e-4": Variant(EXPLORING, prompts=32, updates=8, ema=0.96, iterations=45, lr=1e-4),
        "24x4-32-prompts-8-updates-7.5e-5": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, iterations=50, lr=7.5e-5
        ),
        "24x4-32-prompts-8-updates-3.5e-5": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60, lr=3.5e-5
        ),
        "24x4-32-prompts-8-updates-slow-average": Variant(EXPLORING, prompts=32, updates=8, ema=0.98, iterations=60),
        "24x4-32-prompts-8-updates-kl": Variant(EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60, kl=0.2),
        "24x4-40-prompts-8-updates": Variant(EXPLORING, prompts=40, updates=8, ema=0.96, iterations=55),
        "32x3-32-prompts-8-updates": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, previews=(32, 3), iterations=60
        ),
        "16x8-32-prompts-8-updates": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, previews=(16, 8), iterations=50
        ),
        "24x4-32-of-48-prompts-8-updates": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, candidates=(1.5, 6), iterations=55
        ),
        "24x4-32-of-48-prompts-8-updates-slow-average": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.98, candidates=(1.5, 6), iterations=55
        ),
        "16x4-48-prompts-8-updates-pairs": Variant(
            EXPLORING, prompts=48, updates=8, ema=0.96, previews=(16, 4), iterations=60, group_size=2
        ),
        "24x4-32-prompts": Variant(EXPLORING, prompts=32, ema=0.92, iterations=60),
        "24x4-32-prompts-7e-5": Variant(EXPLORING, prompts=32, ema=0.92, iterations=60, lr=7e-5),
        "20x5-32-prompts": Variant(EXPLORING, prompts=32, ema=0.92, previews=(20, 5), iterations=60),
        "12x8-32-prompts": Variant(EXPLORING, prompts=32, ema=0.92, previews=(12, 8), iterations=60),
        "24x4-24-prompts-3-updates": Variant(EXPLORING, prompts=24, updates=3, ema=0.92, iterations=70),
        "24x4-32-prompts-8-updates": Variant(EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60),
        "16x6-32-prompts-8-updates": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, previews=(16, 6), iterations=60
        ),
        "plain-no-kl": Variant(BASELINE, kl=0),
        "24x4-32-prompts-8-updates-no-kl": Variant(EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60, kl=0),
        "24x4-32-prompts-8-updates-less-kl": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60, kl=0.03
        ),
        "24x4-32-prompts-8-updates-no-kl-slow-average": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.975, iterations=60, kl=0
        ),
        "24x4-32-prompts-8-updates-no-kl-slow-behaviour": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, iterations=60, kl=0, behaviour=0.7
        ),
        "24x4-24-prompts-6-updates-no-kl": Variant(EXPLORING, prompts=24, updates=6, ema=0.96, iterations=60, kl=0),
        "24x4-16-prompts-8-updates-4-timesteps-no-kl": Variant(
            EXPLORING, prompts=16, updates=8, ema=0.96, iterations=60, kl=0, timesteps=4
        ),
        "24x4-16-prompts-8-updates-4-timesteps": Variant(
            EXPLORING, prompts=16, updates=8, ema=0.96, iterations=60, timesteps=4
        ),
        "24x4-16-prompts-4-timesteps": Variant(EXPLORING, prompts=16, updates=4, ema=0.96, iterations=60, timesteps=4),
        "24x4-24-prompts-6-updates-3-timesteps": Variant(
            EXPLORING, prompts=24, updates=6, ema=0.96, iterations=60, timesteps=3
        ),
        "24x4-24-prompts-6-updates-4-timesteps": Variant(
            EXPLORING, prompts=24, updates=6, ema=0.96, iterations=60, timesteps=4
        ),
        "24x4-32-prompts-1-timestep": Variant(EXPLORING, prompts=32, updates=4, ema=0.96, iterations=60, timesteps=1),
        "16x4-32-prompts-1-timestep": Variant(
            EXPLORING, prompts=32, updates=4, ema=0.96, previews=(16, 4), iterations=60, timesteps=1
        ),
        "16x4-32-prompts-8-updates-1-timestep": Variant(
            EXPLORING, prompts=32, updates=8, ema=0.96, previews=(16, 4), iterations=60, timesteps=1
        ),
        "16x4-24-prompts-6-updates-1-timestep": Variant(
            EXPLORING, prompts=24, updates=6, ema=0.96, previews=(16, 4), iterations=60, timesteps=1
        ),
        "16x4-48-prompts-8-updates-1-timestep": Variant(
            EXPLORING, prompts=48, updates=8, ema=0.96, previews=(16, 4), iterations=60, timesteps=1
        ),
    },
}


def run(args: argparse.Namespace) -> None:
    for name, variant in VARIANTS[args.family].items():
        if args.only and name not in args.only:
            continue
        asked = Namespace(
            family=args.family,
            setups=[variant.setup],
            profiles=[PROFILE],
            traces=[TRACE],
            numerics="real",
            device=args.device,
            remember=None,
            same_batches=True,
            overrides=[*variant.settings, *args.overrides],
            out=args.out / name,
        )
        asked.out.mkdir(parents=True, exist_ok=True)
        for seed in args.seeds:
            headline.run_seed(asked, seed)


def figures_of(folder: Path) -> dict[str, Figure]:
    price = PriceTable.load(None).rows[PRICED]
    figures = {}
    for family, variants in VARIANTS.items():
        own = {cell.seed: cell for cell in cells_of(folder / OWN, family)}
        for name, variant in variants.items():
            cells = {cell.seed: cell for cell in cells_of(folder / name, family) if cell.seed in own}
            races = [
                Race(name, family, PROFILE, TRACE, seed, {BASELINE: own[seed], name: cell})
                for seed, cell in sorted(cells.items())
            ]
            for share in (0.5, 1.0):
                if races and name != OWN:
                    seeds = " and ".join(str(race.seed) for race in races)
                    what = f"times, {variant.setup}, seeds {seeds}"
                    key = f"{family} {name}" + ("" if share == 1 else " at 50 %")
                    figures[key] = figure((speedup(race, BASELINE, share, price) for race in races), what)
    return figures


def _kept(earlier: Figure) -> Figure:
    """Told to be over another run of the baseline, which newer figures need not agree with."""
    told = earlier.unit if EARLIER in earlier.unit else f"{earlier.unit}; {EARLIER}"
    return msgspec.structs.replace(earlier, unit=told)


def cells_of(folder: Path, family: str) -> Sequence[headline_cells.Cell]:
    return [headline_cells.load(path) for path in sorted(folder.glob(f"{family}-*.json"))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=tuple(VARIANTS), default="words-large")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/batches"))
    parser.add_argument("--merge", type=Path, metavar="FOLDER", help="tell what the cells there say instead of running")
    parser.add_argument(
        "--onto", type=Path, metavar="FILE", help="with --merge: an earlier result, kept where nothing is newer"
    )
    args = parser.parse_args()
    if args.onto and not args.merge:
        parser.error("--onto says what to keep beside merged cells; give --merge as well")
    if not args.merge:
        run(args)
        return
    earlier = json.loads(args.onto.read_text()) if args.onto else {"computed": [], "seeds": [], "figures": {}}
    kept = {name: _kept(one) for name, one in msgspec.convert(earlier["figures"], dict[str, Figure]).items()}
    figures = kept | figures_of(args.merge)
    cells = [headline_cells.load(path) for path in sorted(args.merge.glob("*/*.json"))]
    result = {
        "benchmark": "batches",
        **provenance(),
        "computed": sorted({*earlier["computed"], *(f"{cell.commit} on {cell.hardware}" for cell in cells)}),
        "seeds": sorted({*earlier["seeds"], *(cell.seed for cell in cells)}),
        "figures": {name: msgspec.to_builtins(one) for name, one in figures.items()},
    }
    args.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    table = Table("variant", "times as quick", "least", "most", caption="*: not every run came there")
    for name, one in figures.items():
        mark = "*" if "not" in one.unit else ""
        table.add_row(name, f"{one.value:.2f}{mark}", f"{one.low:.2f}", f"{one.high:.2f}")
    Console().print(table)
