"""Gain of time-step parallelism on one GPU: seconds per image-timestep by batch of a forward and a backward.

    python -m benchmarks.tsp [--sizes 512 1280] [--limit 280] [--merge] [--json]         # needs one CUDA GPU of 141 GB
    python -m benchmarks.tsp --model small --device cpu --sizes 64 96                    # tries the script anywhere

The whole Qwen-Image transformer with random weights, LoRA of rank 64, checkpointed, eager, through the project's own
trainer: `begin` and `add` of an update with the Flow-GRPO loss, of one picture that was rolled out with one SDE step
per timestep of the batch. A batch of 8 is this picture at 8 of its timesteps; one at a time is the same picture with
`train.micro_batch: 1`. At the first size also 8 pictures at one timestep each (`batches_over: samples`): the same
number of rows. A trainer with many pictures gains the same by batching over them; time-step parallelism has this gain
with few pictures, as when groups are trained on while others are rolled out. One GPU gathers no sharded weights, so the
savings of a gang by fewer gathers are not in these figures.

Every round times every batch, each time beginning with another one; a ratio is of one round. Peak memory is the largest
total allocation, including the optimizer's moments. Batches that do not fit are left out and named. Results are kept
by size; --merge adds to those in --out.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("tsp", __doc__, out=Path("runs/tsp"))
    flags.add_argument("--model", choices=["qwen-image", "small"], default="qwen-image")
    flags.add_argument("--device", default="cuda")
    flags.add_argument("--sizes", type=int, nargs="+", default=[512, 1280], help="pixels of a side")
    flags.add_argument("--rounds", type=int, help="default 5, or 3 for large pictures")
    flags.add_argument(
        "--limit", type=float, default=280.0, help="seconds after which no round is begun that ends later"
    )
    flags.add_argument("--no-tf32", action="store_true", help="fp32 matmuls, which are the adapters', in full")
    flags.add_argument("--merge", action="store_true", help="keep other sizes of --out")
    args = flags.parse_args()
    from benchmarks.tsp.run import measure

    measure(args)


if __name__ == "__main__":
    start("tsp", main)
