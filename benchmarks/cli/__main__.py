"""How quickly the command line starts, beside the imports that it cannot avoid.

    python -m benchmarks.cli [--iterations 1000] [--rounds 15] [--json] [--out docs/results/cli]

Processor seconds of whole processes, as ratios within one round: `spotlight --help` over `python -c "import typer,
rich"`, and `spotlight status` on a run of 1,000 iterations over `spotlight --help`. The run is simulated once, with 12
slots, preemptions and the snapshot that `spotlight train` writes after every iteration.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("cli", __doc__)
    arguments.add_argument("--iterations", type=int, default=1000, help="iterations of the run that status reads")
    arguments.add_argument("--rounds", type=int, default=15, help="repeats of each command")
    args = arguments.parse_args()
    from benchmarks.cli.run import measure
    from benchmarks.lib.report import publish, summary_of

    figures, settings = measure(args.iterations, args.rounds)
    publish(summary_of("cli", figures, range(args.rounds), settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("cli", main)
