"""Gain of each technique of the pipeline, in virtual time: serial, then groups trained as they are completed (GAP),
batches over timesteps (TSP), trainers that roll out (TAG) and rollouts one version ahead (asynchrony).

    python -m benchmarks.pipeline [--quick] [--json] [--out docs/results/pipeline]
    python -m benchmarks.pipeline --random 40 --seed 1 --jobs 16     # also 40 settings drawn at random from a grid

The control plane is the product's; machines have the durations of the profiles of Qwen-Image 20 B on H200s, and
capacity is steady. Every row of every cell, baselines included, uses its best batch of samples per slot among the timed
ones; with TAG also among those halfway between two timed ones. From TSP on, a row also uses its best number of groups
per part, among those that fill batches of pairs or of samples.
Beside each row is its arithmetic ceiling (`ceilings.py`), and beside all a colocated pool of the same slots: simulated
with its changes of role, and without any overhead, which no schedule can beat if all slots are alike. Only the
assignment of groups to updates is random, so seeds hardly differ.

The fifty settings were chosen by hand. `--random` draws more from the grid of `random_cells.py`; their figures begin
with `random_` and have the spread over settings. Every row of a cell is a task with its own file under --cells and is
skipped when that file exists, so an interrupted command resumes when it is repeated.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start
from benchmarks.lib.parallel import add_jobs

TITLE = "virtual time, steady capacity, Qwen-Image 20 B on H200 (profiles)"


def main() -> None:
    flags = parser("pipeline", __doc__, out=Path("runs/pipeline"))
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--quick", action="store_true", help="two cells instead of the chosen ones")
    flags.add_argument("--random", type=int, default=0, metavar="N", help="also N cells drawn at random")
    flags.add_argument("--seed", type=int, default=0, help="of the draw of --random")
    flags.add_argument("--cells", type=Path, default=Path("runs/pipeline-cells"), help="folder of the rows' files")
    add_jobs(flags)
    args = flags.parse_args()
    from benchmarks.lib.merge import stamp_of
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.pipeline.cells import profile_of
    from benchmarks.pipeline.figures import figures_of, modelled, random_figures_of, ranks_of, table_of
    from benchmarks.pipeline.plot import draw
    from benchmarks.pipeline.random_cells import GRID, drawn
    from benchmarks.pipeline.run import QUICK, cells, run_missing, tasks_of

    chosen = tasks_of(QUICK if args.quick else cells(), args.seeds)
    others = tasks_of(drawn(args.random, args.seed, without=cells()), args.seeds)
    done = run_missing([*chosen, *others], args.cells, args.jobs)
    outcomes, random_ones = [[one.outcome for one in part] for part in (done[: len(chosen)], done[len(chosen) :])]
    profiles = {name: profile_of(name) for name in sorted({one.outcome.cell.profile for one in done})}
    settings = {
        "profiles": {name: profile.digest for name, profile in profiles.items()},
        "modelled": {
            name: modelled(profile, ranks_of([one.outcome for one in done])) for name, profile in profiles.items()
        },
        "not_charged": "network between nodes, sharding of the model over ranks, evaluation, checkpoints",
        "processor_minutes": round(sum(one.processor_s for one in done) / 60, 1),
    }
    if random_ones:
        settings["random"] = {"settings": args.random, "seed": args.seed, "grid": GRID}
    draw(outcomes, TITLE, args.out.with_suffix(".png"))
    figures = figures_of(outcomes) | (random_figures_of(random_ones) if random_ones else {})
    summary = summary_of("pipeline", figures, args.seeds, stamp_of(done), settings=settings)
    summary |= {"outcomes": msgspec.to_builtins(outcomes), "random": msgspec.to_builtins(random_ones)}
    publish(summary, args.out, args.json, table_of([*outcomes, *random_ones], TITLE))


if __name__ == "__main__":
    start("pipeline", main)
