"""In which batches is learning quickest, with previews and without? Prompts, updates and previews, co-simulated.

    python -m benchmarks.batches --family scenes --seeds 0 1 --device cuda [--only NAME ...] --out runs/batches
    python -m benchmarks.batches --merge runs/batches --out docs/results/batches [--onto docs/results/batches.json]

Every variant is a setup of benchmarks/headline/ with other settings, at 512 under the shipped calm trace. A figure is
the hours in which `reserved-only` with its own settings reaches its final score, over the variant's hours to that
score: the geometric mean over seeds, from the least to the most. A run that does not reach it counts with all its
hours, which favours the variant; the unit has the number of such runs. Cells are kept under --out and are not run
twice; --onto keeps the figures of an earlier result for variants without cells.
"""

import argparse
from pathlib import Path

from benchmarks.batches.variants import VARIANTS
from benchmarks.lib.command import parser, start


def arguments() -> argparse.Namespace:
    flags = parser("batches", __doc__, out=Path("runs/batches"))
    flags.add_argument("--family", choices=tuple(VARIANTS), default="words-large")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--only", nargs="+", metavar="NAME")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    flags.add_argument("--merge", type=Path, metavar="FOLDER", help="figures of the cells there instead of running")
    flags.add_argument(
        "--onto", type=Path, metavar="FILE", help="with --merge: an earlier result, kept where nothing is newer"
    )
    args = flags.parse_args()
    if args.onto and not args.merge:
        flags.error("--onto has an effect only with --merge; give both")
    return args


def main() -> None:
    args = arguments()
    if args.merge:
        from benchmarks.batches.figures import present

        present(args.merge, args.onto, args.out, args.json)
        return
    from benchmarks.batches.run import run_variant

    for name in args.only or VARIANTS[args.family]:
        run_variant(args, name)


if __name__ == "__main__":
    start("batches", main)
