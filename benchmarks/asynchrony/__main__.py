"""Does training on samples one version old learn as well? Synchronous against asynchronous runs, co-simulated.

    python -m benchmarks.asynchrony --seeds 0 1 2                                    # `words`, both losses, on a CPU
    python -m benchmarks.asynchrony --seeds 0 --loss nft --device cuda               # a part of it, on a GPU
    python -m benchmarks.asynchrony --merge runs/asynchrony/*-seed?.json --out docs/results/asynchrony --json

The tiny model of the family really trains while a virtual clock charges the profile of Qwen-Image 20 B on H200s for 4
reserved and 8 spot slots; neither arm explores. Both arms share every setting, prompts and seeds, and train for the
same number of iterations. In the asynchronous arm half of the groups of every iteration but the first (--share) are
drawn with the previous weights. Deterministic mode admits exactly this share, whatever the clock, so the arm is the
worst case of the setting.

Each run writes its own file under --out and is skipped when that file exists, so an interrupted benchmark resumes when
it is repeated. Runs of several machines are joined with --merge.
"""

import argparse
from pathlib import Path

from benchmarks.lib.command import parser, start

LOSSES = ("nft", "flow_grpo")
ARMS = ("synchronous", "asynchronous")


def arguments() -> argparse.Namespace:
    flags = parser("asynchrony", __doc__, out=Path("runs/asynchrony"))
    flags.add_argument("--family", choices=("words", "words-large", "scenes"), default="words")
    flags.add_argument("--loss", nargs="+", choices=LOSSES, default=list(LOSSES))
    flags.add_argument("--arm", nargs="+", choices=ARMS, default=list(ARMS))
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    flags.add_argument("--share", type=float, default=0.5, help="share of an iteration's groups that are stale")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    flags.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join result files instead of running")
    return flags.parse_args()


def main() -> None:
    args = arguments()
    from benchmarks.asynchrony import figures

    if args.merge:
        figures.present([figures.read(path) for path in args.merge], args.out, args.json)
        return
    from benchmarks.asynchrony.run import path_of, run_seed

    args.out.mkdir(parents=True, exist_ok=True)
    for loss in args.loss:
        for seed in args.seeds:
            run_seed(args, loss, seed)
    paths = [path_of(args, loss, arm, seed) for loss in args.loss for arm in args.arm for seed in args.seeds]
    figures.present([figures.read(path) for path in paths], args.out / "asynchrony", args.json)


if __name__ == "__main__":
    start("asynchrony", main)
