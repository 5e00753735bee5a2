"""Which solver ranks seeds better at the same cost: Euler steps of the ODE (ode) or second-order ones (ode2)?

    python -m benchmarks.solvers [--families words scenes] [--steps 4 5] [--prompts 24] [--seeds 32] [--device cpu]
        [--json]

The base model draws the same seeds of the same prompts exactly (10 Euler steps) and as previews of both solvers, with
one forward per step each. For every prompt the previews keep the quarter of the seeds with the largest variance.
- payoff: variance of the kept seeds' exact rewards over that of all; a random choice scores 1.
- captured: that variance over the largest of any choice.
- pearson: correlation of preview and exact rewards within prompts.
- gain: ode2 minus ode in `captured`, with the same pictures for every prompt.

Intervals are 95 % of resampled prompts.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("solvers", __doc__, out=Path("runs/solvers"))
    flags.add_argument("--families", nargs="+", default=["words", "scenes"])
    flags.add_argument("--steps", nargs="+", type=int, default=[4, 5])
    flags.add_argument("--prompts", type=int, default=24)
    flags.add_argument("--seeds", type=int, default=32, help="seeds per prompt; a quarter is kept")
    flags.add_argument("--device", default="cpu")
    args = flags.parse_args()
    from benchmarks.lib.figures import Figure
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.solvers.run import figures, measure

    found: dict[str, Figure] = {}
    for family in args.families:
        for ranked in measure(family, args.steps, args.prompts, args.seeds, args.device):
            found |= figures(ranked)
    publish(summary_of("solvers", found, [0]), args.out, args.json)


if __name__ == "__main__":
    start("solvers", main)
