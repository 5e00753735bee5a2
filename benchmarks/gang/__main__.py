"""Iteration times with one and two training ranks, beside the simulator's prediction.

    python -m benchmarks.gang [--seeds 0 1 2] [--json] [--out docs/results/gang]

`words-nft` without spot nodes and without previews: one reserved node with one or two slots that roll out and train
together, one thread each. The simulation takes its durations from a profile that is measured just before, with the
other slot at work where there are two (`spotlight profile --beside 1`); its optimizer step of two ranks is derived,
not measured. An iteration lasts from the end of the previous one to its own end; the first two do not count. An error
is the predicted time over the real one, minus 1. On two cores, two ranks also share them with the reward process, the
agent and the controller.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("gang", __doc__, out=Path("runs/gang"))
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="one run of each kind per seed")
    flags.add_argument("--iterations", type=int, default=8, help="number that counts, after the warm-up")
    flags.add_argument("--shipped-profile", action="store_true", help="use cpu-words instead of a measured profile")
    args = flags.parse_args()
    from benchmarks.gang.run import figures
    from benchmarks.lib.report import publish, summary_of

    found = figures(args.seeds, args.iterations, args.shipped_profile)
    publish(summary_of("gang", found, args.seeds), args.out, args.json)


if __name__ == "__main__":
    start("gang", main)
