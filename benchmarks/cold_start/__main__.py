"""Time from the start of a worker on a new machine until its device has the weights, with and without reading ahead.

    python -m benchmarks.cold_start [--gigabytes 41] [--rounds 2] [--json] [--out docs/results/cold_start]

Needs one CUDA GPU, and root, because the page cache is emptied before each start. Pages of libraries that the measuring
process has mapped stay, so imports are somewhat quicker than on a new machine. `start` is a new process that imports
what workers import, then maps a file of random weights and copies it to the device as workers do. `start_read_ahead` is
the same process while its machine reads the file ahead (`spotlight.pools.read_ahead`), `imports` the same without
weights. They run in turns; ratios are taken within a round. `read_by_N`: the file alone, read by N threads, once.
"""

import tempfile
from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("cold_start", __doc__)
    flags.add_argument("--gigabytes", type=float, default=41.0, help="size of the weights in bf16; 41 is Qwen-Image")
    flags.add_argument("--rounds", type=int, default=2)
    flags.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="where the file on disk goes")
    args = flags.parse_args()
    from benchmarks.cold_start.run import measure
    from benchmarks.lib.report import publish, summary_of

    figures = measure(args.gigabytes, args.disk, args.rounds)
    settings = {"gigabytes": args.gigabytes, "rounds": args.rounds}
    publish(summary_of("cold_start", figures, range(args.rounds), settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("cold_start", main)
