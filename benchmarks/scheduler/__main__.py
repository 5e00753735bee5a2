"""The pull scheduler alone, in memory, on one core: lease cycles per second, and the cost of ten times the workers.

    python -m benchmarks.scheduler [--json] [--out docs/results/scheduler]

One cycle is one sample's path through ledger and scheduler: its worker pulls, receives the lease, sends a heartbeat
with its progress, and its result is accepted. All workers are busy all the time and finish in random order; a cycle has
one row, so nothing is shared between leases. The journal is left out. Requests are issued before the clock starts, the
same number for all sizes, and enough that the work never runs out: without work slow workers would be refused.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("scheduler", __doc__, out=Path("runs/scheduler"))
    flags.add_argument("--repeats", type=int, default=5)
    flags.add_argument("--cycles", type=int, default=60_000)
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.scheduler.run import figures

    found = figures(args.repeats, args.cycles)
    publish(summary_of("scheduler", found, range(args.repeats)), args.out, args.json)


if __name__ == "__main__":
    start("scheduler", main)
