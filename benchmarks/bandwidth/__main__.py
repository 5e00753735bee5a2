"""How long published weights take to many machines, beside the arithmetic bound of a chain.

    python -m benchmarks.bandwidth [--nodes 8] [--megabytes 1700] [--rate 12.5] [--json] [--out docs/results/bandwidth]

A process serves a run's folder over TLS, and one process per node copies a file from the node before it, as agents on
other machines do (`node/far.py`, `node/shared_files.py`). Every server sends at most `--rate` MB per second, which
stands for the link of its machine. The bound is the time of one copy and, per further node, of one part of the file.
Sent by the run's server alone, the file would take as many times as long as there are nodes.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("bandwidth", __doc__)
    arguments.add_argument("--nodes", type=int, default=8)
    arguments.add_argument("--megabytes", type=int, default=1700, help="size of the file")
    arguments.add_argument("--rate", type=float, default=12.5, help="MB per second that a server sends")
    arguments.add_argument("--repeats", type=int, default=1)
    args = arguments.parse_args()
    from benchmarks.bandwidth.run import measure
    from benchmarks.lib.report import publish, summary_of

    figures = measure(args.nodes, args.megabytes, args.rate, args.repeats)
    facts = {"nodes": args.nodes, "megabytes": args.megabytes, "rate": args.rate}
    publish(summary_of("bandwidth", figures, range(args.repeats), **facts), args.out, args.json)


if __name__ == "__main__":
    start("bandwidth", main)
