"""Predicted and measured peak memory of training and rollout, through the product's own trainer and engine.

    python -m benchmarks.memory [--json] [--out docs/results/memory]

The model has the released size and random weights (`random:qwen-image`), adapters as in the recipe
`qwen-image-ocr-512`, and three published sets, as a worker holds them. Training runs two forwards and backwards per
update at 512x512, with all blocks recomputed and, where it fits, with none. Rollouts run at 1280x1280 while images are
decoded in another thread, as in a worker. Figures are predicted over measured bytes of torch's allocator; the bytes are
in the unit. `--tiny` counts live tensors of a tiny model on a CPU.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("memory", __doc__)
    arguments.add_argument("--tiny", action="store_true", help="random-tiny weights on a CPU, to try the benchmark")
    args = arguments.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.memory.run import measure

    figures, details = measure(args.tiny)
    publish(summary_of("memory", figures, [0]), args.out, args.json, cases=details)


if __name__ == "__main__":
    start("memory", main)
