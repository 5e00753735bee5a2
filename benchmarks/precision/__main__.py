"""How well do previews in bf16 and in fp8 rank seeds, beside previews in the model's own precision?

    python -m benchmarks.precision [--family words-large] [--steps 8 4] [--prompts 32] [--seeds 64] [--groups 0 1 2]
        [--device cpu] [--json] [--out docs/results/precision]

The base model draws the same seeds of the same prompts exactly (10 steps) and as previews with its blocks in float32,
in bf16 and in fp8: weights and inputs of every linear layer are rounded as fp8 previews of a large model round them, a
scale per row. For every prompt the previews keep the quarter of the seeds with the largest variance. Figures as in
benchmarks.solvers; each group has other prompts and other seeds, and the range is that over the groups.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("precision", __doc__)
    flags.add_argument("--family", default="words-large")
    flags.add_argument("--steps", nargs="+", type=int, default=[8, 4])
    flags.add_argument("--prompts", type=int, default=32)
    flags.add_argument("--seeds", type=int, default=64, help="seeds per prompt; a quarter is kept")
    flags.add_argument("--groups", nargs="+", type=int, default=[0, 1, 2], help="disjoint sets of prompts and seeds")
    flags.add_argument("--device", default="cpu")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.precision.run import figures, measure

    found = [measure(args.family, args.steps, args.prompts, args.seeds, group, args.device) for group in args.groups]
    publish(summary_of("precision", figures(found), args.groups), args.out, args.json)


if __name__ == "__main__":
    start("precision", main)
