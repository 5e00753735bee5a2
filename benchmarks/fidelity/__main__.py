"""Fidelity of the simulator: iteration times of real runs against simulations of the same recipe.

    python -m benchmarks.fidelity [--only cpu paced trace] [--seeds 0 1 2] [--fresh-profile] [--merge] [--json]

- cpu: `words-nft` really trains on one reserved and one spot process, one thread each, on this machine; the simulation
  takes its durations from the profile `cpu-words`, or with --fresh-profile from the mean of two that are measured
  before and after each run, because the speed of a shared machine changes within minutes. Such a run has two cores,
  which its judges, agents and controller also use, so the profile is measured with another slot at work
  (`spotlight profile --beside 1`).
- paced: four reserved slots that train together and eight spot slots, real controller, agents, workers and sockets;
  each operation is held to its duration in a profile (`spotlight train --pace`).
- trace: the same while spot nodes come and go by a generated trace, with and without notice, by SIGKILL.

Paced runs spend several seconds of the profile in one (--speed). The simulation uses the profile and the trace divided
by that, so fixed waits (heartbeats, sockets, restarts) have more weight than at full length, never less. An iteration
lasts from the end of the previous one to its own end in the journal; the first two do not count. For cpu and paced the
figure is the error of the median, for the trace that of the sum. A positive error means that the simulation is slower
than the run.

The start of a dozen processes at once on this machine is not measured here. So the trace loses no node before the end
of the second iteration, and the simulation replays the run's nodes from then on: each joins, is warned and is lost at
the times of the real one. Losses are placed by the end of the warm-up and the iterations of a simulation without
losses, so any profile has losses with notice, without notice and of several nodes at once (`losses.py`). A run that
starts so slowly that it loses a node in its warm-up is repeated with later losses, and a pair without a loss is an
error.

Results are kept by kind and seed; --merge adds to those in --out, so that kinds and seeds can be run one by one.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start

KINDS = ("cpu", "paced", "trace")


def main() -> None:
    flags = parser("fidelity", __doc__, out=Path("runs/fidelity"))
    flags.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    flags.add_argument("--fresh-profile", action="store_true", help="measure cpu-words before and after each run")
    flags.add_argument("--profile", default="h200-qwen-image-512", help="of the paced runs")
    flags.add_argument("--speed", type=float, default=2.0, help="seconds of that profile in one")
    flags.add_argument("--iterations", type=int, default=8, help="number that counts, after the warm-up")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run of each kind per seed")
    flags.add_argument("--merge", action="store_true", help="keep other kinds and seeds of --out")
    flags.add_argument("--keep", type=Path, help="a new folder for the runs and their simulations")
    args = flags.parse_args()
    from benchmarks.fidelity.figures import figures, joined, table_of
    from benchmarks.fidelity.plot import draw
    from benchmarks.fidelity.run import kept_or_not, pairs_of
    from benchmarks.lib.report import publish, summary_of

    with kept_or_not(args.keep) as folder:
        found = {kind: pairs_of(kind, args, folder) for kind in args.only}
    path = args.out.with_suffix(".json")
    runs = joined(path, found) if args.merge else found
    draw(runs, path.with_suffix(".png"))
    seeds = sorted({pair.seed for pairs in runs.values() for pair in pairs})
    summary = summary_of("fidelity", figures(runs, args.profile), seeds)
    publish({**summary, "runs": msgspec.to_builtins(runs)}, args.out, args.json, table_of(runs))


if __name__ == "__main__":
    start("fidelity", main)
