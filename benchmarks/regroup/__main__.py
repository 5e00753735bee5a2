"""Pause of a crew when one of its ranks is killed in the middle of a step: real processes, real SIGKILLs.

    python -m benchmarks.regroup [--quick] [--kills 60] [--device cpu] [--json] [--out docs/results/regroup]

One node of four slots works on one sample of `words`, which all four share. Repeatedly one of them, leader or follower,
is killed at a random time within a step; the clock runs until the controller has the next step that the survivors
completed. Its parts: `detect` (until the agent has broken the crew), `form` (until the survivors' crew is ready; only
for followers, because a leader's sample first goes back to the controller) and `resume` (until its first step). Then
the slot returns and the crew grows again. For comparison, in the same run, the crew's processes are restarted:
`zygote`, all of the node from a process with all imports done, and `cold`, that process as well.
"""

import asyncio

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("regroup", __doc__)
    flags.add_argument("--kills", type=int, default=60)
    flags.add_argument("--relaunches", type=int, default=3)
    flags.add_argument("--quick", action="store_true", help="12 kills and one relaunch of each kind: within a minute")
    flags.add_argument("--device", default="cpu", help="device of the workers; they share one GPU")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.regroup.figures import figures_of
    from benchmarks.regroup.run import SLOTS, measure

    kills, relaunches = (12, 1) if args.quick else (args.kills, args.relaunches)
    done, warm, cold = asyncio.run(measure(kills, relaunches, args.device))
    settings = {"slots": SLOTS, "kills": kills, "relaunches": relaunches, "model": "words", "device": args.device}
    publish(summary_of("regroup", figures_of(done, warm, cold), [0], settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("regroup", main)
