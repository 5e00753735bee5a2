"""How long a run takes to its first sample, and a killed worker to its replacement's first one.

    python -m benchmarks.start [--recipe words-large-nft] [--device cuda] [--json] [--out docs/results/start]

Both are ratios within one run of the benchmark: the start of `spotlight train` to its first accepted sample over a
process that imports torch and diffusers and opens the device, and the kill of a worker to the first accepted sample of
its replacement over the start. The run has long phases of rollouts without previews, 16 rows per worker, and the kill
falls into one, half a minute after the first sample.
Each is repeated (`--rounds`).
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    arguments = parser("start", __doc__)
    arguments.add_argument("--recipe", default="words-large-nft", help="a shipped recipe")
    arguments.add_argument("--device", default="auto", help="cpu, cuda or auto")
    arguments.add_argument("--rounds", type=int, default=3, help="runs, each with one kill")
    arguments.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the run")
    args = arguments.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.start.run import measure

    figures, settings = measure(args.recipe, args.device, args.rounds, args.set)
    publish(summary_of("start", figures, range(args.rounds), settings=settings), args.out, args.json)


if __name__ == "__main__":
    start("start", main)
