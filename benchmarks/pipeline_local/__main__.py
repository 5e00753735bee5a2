"""Training during rollouts on this machine: seconds per iteration of real local processes, pipelined against serial.

    python -m benchmarks.pipeline_local [--only balanced generation_bound weights] [--repeats 0 1 2] [--merge] [--json]

`words-nft` trains on one reserved process and is rolled out by one spot process, one thread each, on two cores, without
previews. The same task and samples, three ways:
- serial: all samples are rolled out, then all are trained on; the trainer only trains (batches over samples, the same
  size);
- gap: the trainer takes complete groups while others are rolled out (`pipeline.gap`, batches over pairs);
- pipelined: it also helps to roll out while it has no group to train on (`pipeline.tag`).

balanced: rolling out takes about as long as training; serial against pipelined. generation_bound: it takes several
times as long, so the trainer mostly waits; all three ways. Every repeat runs its ways one after the other, beginning
with another one each time, and a ratio is of one repeat. An iteration lasts from the end of the previous one to its own
end in the journal, and the first two do not count.

The bounds are arithmetic from the serial run of the same repeat: G seconds of rollouts and T of training in M groups,
and R without overlap (publication, messages). Serial: G + T + R. GAP: G/M + (M-1) max(G, T)/M + T/M + R. With TAG both
processes do everything, but training begins after the first group and only the trainer does its last part:
max((G + T + T/M)/2, T + G/2M) + R. The bounds assume that two busy cores are each as fast as one, which does not hold
if controller, agents and judge need them too.

weights: in deterministic mode, with the same batches in all ways (over pairs, with groups that fill them), the digests
of the weights after each step are equal. With batches over samples gradients are summed in another order, so the last
bits differ.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start

SETTINGS = ("balanced", "generation_bound")


def main() -> None:
    kinds = [*SETTINGS, "weights"]
    flags = parser("pipeline_local", __doc__, out=Path("runs/pipeline-local"))
    flags.add_argument("--only", nargs="+", choices=kinds, default=kinds)
    flags.add_argument(
        "--repeats", type=int, nargs="+", default=[0, 1, 2], help="numbers of the repeats, used as run seeds"
    )
    flags.add_argument("--iterations", type=int, default=3, help="number that counts, after the warm-up")
    flags.add_argument("--merge", action="store_true", help="keep other settings and repeats of --out")
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
