"""Cost of a checkpoint to a trainer: the pause for the copy, and the slower training during the write.

    python -m benchmarks.checkpoint [--rounds 2] [--json] [--out FILE]     # needs one CUDA GPU of 141 GB
    python -m benchmarks.checkpoint --model words --device cpu            # tries the script anywhere

The whole Qwen-Image transformer with random weights, LoRA of rank 64, its copies and the optimizer's moments, as the
trainer holds them. A round is: training steps alone, a snapshot, then training steps until a thread has written it to
disk, with the product's own code (`compute/profiling/writing.py`). `lost_s` is the total extra time of these steps. A
ratio is of one round.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("checkpoint", __doc__)
    flags.add_argument("--model", default="qwen-image")
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--batch", type=int, default=8, help="pictures of a step")
    flags.add_argument("--rounds", type=int, default=2)
    args = flags.parse_args()
    from benchmarks.checkpoint.run import figures
    from benchmarks.lib.report import publish, summary_of

    found = figures(args.model, args.device, args.batch, args.rounds)
    publish(summary_of("checkpoint", found, [0], model=args.model), args.out, args.json)


if __name__ == "__main__":
    start("checkpoint", main)
