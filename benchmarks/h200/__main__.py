"""What the product reaches of a GPU with Qwen-Image at its released size, against eager diffusers in the same run.

    python -m benchmarks.h200 [--json] [--out docs/results/h200]

The transformer has 20.4 B random weights in bf16. Eager diffusers runs its own forward with text of the full width, so
that it needs no mask and uses flash attention; the product runs `velocity` with padded text and its mask, compiled,
with the attention kernel that it measures and CUDA graphs where they pay. Shares of the peak count the forward's
arithmetic over a plain matmul of 8192 x 8192 in the same run. Training is a forward and a backward with adapters of
rank 64 in all linear layers; eager is checkpointed at 8 rows. `--tiny` tries the benchmark on a CPU.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("h200", __doc__)
    arguments.add_argument("--tiny", action="store_true", help="a tiny model on a CPU, to try the benchmark")
    arguments.add_argument("--stage", choices=("all", "forward", "train"), default="all", help="a part of it")
    args = arguments.parse_args()
    from benchmarks.h200.run import measure
    from benchmarks.lib.report import publish, summary_of

    figures, details = measure(args.tiny, args.stage)
    publish(summary_of("h200", figures, [0]), args.out, args.json, details=details)


if __name__ == "__main__":
    start("h200", main)
