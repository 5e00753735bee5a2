"""Time until a worker that joins a node has the weights of 20 billion parameters, by their source.

    python -m benchmarks.newcomer [--gigabytes 41] [--json] [--out docs/results/newcomer]      # needs one CUDA GPU

Every way runs in a fresh process whose CUDA context is up before the clock starts; it ends when all tensors are on the
device, and their sum is compared with the holder's. `from_neighbour`: device to device, by handles of the holder's
memory. `from_store`: the node's store in shared memory (or, if that is too small, a cached file), through pinned
buffers, as workers do. `from_store_plain`: the same without pinned buffers. `from_store_registered`: the newcomer pins
the store's own pages, including the time for that. `from_disk`: the same file on disk, its cached pages dropped first,
loaded the usual way. Also: forming and aborting an NCCL communicator of one rank; NCCL refuses two ranks on one device,
so crews over NCCL stay unverified.
"""

import tempfile
from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("newcomer", __doc__)
    flags.add_argument("--gigabytes", type=float, default=41.0, help="size of the weights in bf16; 41 is Qwen-Image")
    flags.add_argument("--disk", type=Path, default=Path(tempfile.gettempdir()), help="where the file on disk goes")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.newcomer.run import REPEATS, TENSORS, figures_of, measure_all

    seconds, store = measure_all(args.gigabytes, args.disk)
    settings = {"gigabytes": args.gigabytes, "store": store, "tensors": TENSORS, "repeats": REPEATS}
    publish(summary_of("newcomer", figures_of(seconds), [], settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("newcomer", main)
