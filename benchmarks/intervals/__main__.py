"""Held-out intervals of the shipped `scenes` weights, clustered by prompt and as if all pictures were independent.

    python -m benchmarks.intervals [--count 384] [--json] [--out docs/results/intervals]      # a minute on one core

Both columns are of the same pictures and scores. `NAME` is what `spotlight evaluate scenes --count 384` prints;
`NAME_by_picture` is the interval as if every picture had its own prompt.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("intervals", __doc__, out=Path("runs/intervals"))
    flags.add_argument("--count", type=int, default=384, help="held-out pictures")
    args = flags.parse_args()
    from benchmarks.intervals.run import evaluation, figures
    from benchmarks.lib.report import publish, summary_of

    found = figures(evaluation(args.count))
    publish(summary_of("intervals", found, [0], pictures=args.count), args.out, args.json)


if __name__ == "__main__":
    start("intervals", main)
