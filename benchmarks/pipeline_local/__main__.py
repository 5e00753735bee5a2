"""Training beside rollouts on this machine: seconds per iteration of real local processes, pipelined against serial.

    python -m benchmarks.pipeline_local [--only balanced generation_bound weights] [--repeats 0 1 2] [--merge] [--json]

`words-nft` trains on one reserved process and is rolled out by one spot process, one thread each, on two cores, without
previews. The same task, the same samples, three ways:
- serial: all is rolled out, then all is trained on; the trainer only trains (batches over samples, the same size);
- gap: the trainer takes complete groups while others are rolled out (`pipeline.gap`, batches over pairs);
- pipelined: it also helps to roll out while it has nothing to train on (`pipeline.tag`).

balanced: rolling out takes about as long as training; serial against pipelined. generation_bound: it takes several
times as long, so that the trainer mostly waits; all three ways. Every repeat runs its ways one after the other,
beginning with another one each time, and a ratio is of one repeat. An iteration's time is from the end of the one
before to its own in the journal, and the first two do not count.

The bounds are arithmetic from the serial run of the same repeat: G seconds of rollouts and T of training in M groups,
and R that nothing overlaps (publication, messages). Serial: G + T + R. GAP: G/M + (M-1) max(G, T)/M + T/M + R. With TAG
both do everything, but training begins after the first group and its last part is the trainer's alone:
max((G + T + T/M)/2, T + G/2M) + R. They take it that two busy cores are each as fast as one, which is not so where
controller, agents and judge need them too.

weights: in deterministic mode, where all ways take the same batches (over pairs, with groups that fill them), the
digests of the weights after each step are the same. With batches over samples gradients are summed in another order, so
there the last bits differ.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start

SETTINGS = ("balanced", "generation_bound")


def main() -> None:
    kinds = [*SETTINGS, "weights"]
    flags = parser("pipeline_local", __doc__, out=Path("runs/pipeline-local"))
    flags.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    flags.add_argument("--repeats", type=int, nargs="+", default=[0, 1, 2], help="their numbers, which are run seeds")
    flags.add_argument("--iterations", type=int, default=3, help="that count, after the warm-up")
    flags.add_argument("--merge", action="store_true", help="add to what --out has of other settings and repeats")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.pipeline_local.figures import Found, figures, joined
    from benchmarks.pipeline_local.run import DESCRIBED, digests, repeat

    runs = {
        setting: [repeat(setting, number, args.iterations) for number in args.repeats]
        for setting in SETTINGS
        if setting in args.only
    }
    found = Found(runs=runs, digests=digests(args.repeats[0]) if "weights" in args.only else {})
    if args.merge:
        found = joined(args.out.with_suffix(".json"), found)
    seeds = sorted({each.seed for repeats in found.runs.values() for each in repeats})
    summary = summary_of("pipeline-local", figures(found), seeds, settings=DESCRIBED)
    publish(summary, args.out, args.json, runs=found.runs, digests=found.digests)


if __name__ == "__main__":
    start("pipeline_local", main)
