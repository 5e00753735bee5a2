"""What it costs when all spot nodes vanish within a second and return later, on a Ray cluster with real processes.

    python -m benchmarks.bulk_loss [--quick] [--json] [--out docs/results/bulk_loss]

A paced run on a Ray cluster of `--nodes` spot nodes on this machine, each with its own raylet, and where the system
allows it with its own network namespace. In each round, once all nodes hold samples, their networks are cut and all
their processes are killed with SIGKILL; their Ray is started again `--away` seconds later.
Measured from the journal: the seconds until the samples of the lost nodes are free for others, until the next sample
is accepted, and until each node that returned has finished its first sample; the denoising steps that are redone; and
the optimizer steps that were committed while no spot node was there. Ray finds dead nodes by its own settings.
"""

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("bulk_loss", __doc__)
    flags.add_argument("--nodes", type=int, default=4, help="spot nodes; default 4")
    flags.add_argument("--rounds", type=int, default=3, help="losses; default 3")
    flags.add_argument("--away", type=float, default=60.0, help="seconds without spot nodes; default 60")
    flags.add_argument("--quick", action="store_true", help="two nodes and one round, 4 minutes")
    args = flags.parse_args()
    from benchmarks.bulk_loss.run import Setup, figures_of, measure
    from benchmarks.lib.namespaces import refusal
    from benchmarks.lib.report import publish, summary_of

    nodes, rounds = (2, 1) if args.quick else (args.nodes, args.rounds)
    setup = Setup(nodes=nodes, rounds=rounds, away_s=args.away, network=not refusal())
    rounds_made = measure(setup)
    publish(
        summary_of("bulk_loss", figures_of(rounds_made), [], settings=setup), args.out, args.json, rounds=rounds_made
    )


if __name__ == "__main__":
    start("bulk_loss", main)
