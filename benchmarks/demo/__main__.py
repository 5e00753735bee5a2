"""The demo, measured: score before and after, minutes, preemptions, work redone, and the audit's verdict.

    python -m benchmarks.demo [--seeds 0] [--json] [--out docs/results/demo]

Runs `spotlight train demo` for each seed in a folder of its own, as `make demo` does, and reads its journal.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("demo", __doc__)
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--keep", type=Path, help="leave the runs in this folder")
    args = flags.parse_args()
    from benchmarks.demo.run import figures
    from benchmarks.lib.report import publish, summary_of

    publish(summary_of("demo", figures(args.seeds, args.keep), args.seeds), args.out, args.json)


if __name__ == "__main__":
    start("demo", main)
