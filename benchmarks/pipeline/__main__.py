"""Gain of each technique of the pipeline, in virtual time: serial, then groups trained as they are completed (GAP),
batches over timesteps (TSP), trainers that roll out (TAG) and rollouts one version ahead (asynchrony).

    python -m benchmarks.pipeline [--quick] [--json] [--out docs/results/pipeline]

The control plane is the product's; machines have the durations of the profiles of Qwen-Image 20 B on H200s, and
capacity is steady. Every row of every cell, baselines included, uses its best batch of samples per slot among the timed
ones; with TAG also among those halfway between two timed ones. From TSP on, a row also uses its best number of groups
per part, among those that fill batches of pairs or of samples.
Beside each row is its arithmetic ceiling (`ceilings.py`), and beside all a colocated pool of the same slots: simulated
with its changes of role, and without any overhead, which no schedule can beat if all slots are alike. Only the
assignment of groups to updates is random, so seeds hardly differ.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start

TITLE = "virtual time, steady capacity, Qwen-Image 20 B on H200 (profiles)"


def main() -> None:
    flags = parser("pipeline", __doc__, out=Path("runs/pipeline"))
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--quick", action="store_true", help="two cells only")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.pipeline.cells import profile_of
    from benchmarks.pipeline.figures import figures_of, modelled, ranks_of, table_of
    from benchmarks.pipeline.plot import draw
    from benchmarks.pipeline.run import QUICK, cells, outcomes_of_all

    outcomes = outcomes_of_all(QUICK if args.quick else cells(), args.seeds)
    profiles = {name: profile_of(name) for name in sorted({outcome.cell.profile for outcome in outcomes})}
    settings = {
        "profiles": {name: profile.digest for name, profile in profiles.items()},
        "modelled": {name: modelled(profile, ranks_of(outcomes)) for name, profile in profiles.items()},
        "not_charged": "network between nodes, sharding of the model over ranks, evaluation, checkpoints",
    }
    draw(outcomes, TITLE, args.out.with_suffix(".png"))
    summary = summary_of("pipeline", figures_of(outcomes), args.seeds, settings=settings)
    summary |= {"outcomes": msgspec.to_builtins(outcomes)}
    publish(summary, args.out, args.json, table_of(outcomes, TITLE))


if __name__ == "__main__":
    start("pipeline", main)
