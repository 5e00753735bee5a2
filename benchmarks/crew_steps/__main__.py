"""One forward of Qwen-Image's blocks at sequence-parallel degrees 1, 2, 4 in processes that share one device over gloo.

    python -m benchmarks.crew_steps [--layers 6] [--tokens 1024 6400] [--device cuda] [--json] [--out FILE]

Blocks of the real width (24 heads of 128) with random weights, in bf16 on a GPU and fp32 on a CPU. One device gives no
speed-up: the figures show the cost of sharing (exchanges staged through pinned host memory) and the distance of results
from those at degree 1. Groups over NCCL need a device per rank and are not measured.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("crew_steps", __doc__)
    flags.add_argument("--layers", type=int, default=6, help="of Qwen-Image's 60")
    flags.add_argument("--tokens", type=int, nargs="+", default=[1024, 6400])
    flags.add_argument("--device", help="default cuda if available, else cpu")
    args = flags.parse_args()
    from benchmarks.crew_steps.run import FORWARDS, TEXT, default_device, figures
    from benchmarks.lib.report import publish, summary_of

    device = args.device or default_device()
    settings = {"layers": args.layers, "device": device, "forwards": FORWARDS, "text_tokens": TEXT}
    found = figures(device, args.layers, args.tokens)
    publish(summary_of("crew_steps", found, [0], settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("crew_steps", main)
