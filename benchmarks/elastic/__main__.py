"""Pictures per dollar of elastic crews while slots come and go, in virtual time.

    python -m benchmarks.elastic [--profile h200-qwen-image-1280] [--hours 1.5] [--json] [--out docs/results/elastic]

The work is rounds of few large pictures, fewer than the slots, so that slots share a picture. A round is issued when a
separate gang, charged by the profile, has trained on the previous one. Hub, dispatcher, scheduler, ledger and the
crews' state machine are the product's; the machines are simulated. All policies have the same traces, in which slots go
one by one without notice and nodes lose all slots at one instant. All have the same bill: present slots at the spot
price, the gang on demand. Every worker that starts takes the seconds of the profile, even if a neighbour has the
weights.

    elastic    crews of the product: survivors regroup, a returning slot joins
    relaunch   crews of one size; a loss stops the crew, which restarts on the other slots, and again when it may grow
    idle       crews of one size; a loss stops the crew, which waits for the lost member
    single     no crews: a picture on one slot

The ratios of the summary are against the best size of fixed crews, seed by seed on the same trace.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("elastic", __doc__, out=Path("runs/elastic"))
    flags.add_argument("--profile", default="h200-qwen-image-1280")
    flags.add_argument("--hours", type=float, default=1.5, help="of virtual time per run")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="of the traces")
    args = flags.parse_args()
    from benchmarks.elastic import run
    from benchmarks.elastic.figures import figures_of, table_of
    from benchmarks.elastic.plot import draw
    from benchmarks.lib.report import publish, summary_of

    outcomes = run.all_outcomes(args.profile, args.hours, args.seeds)
    settings, title = run.description(args.profile, args.hours, outcomes)
    draw(outcomes, run.NODES * run.SLOTS, title, args.out.with_suffix(".png"))
    summary = summary_of("elastic", figures_of(outcomes), args.seeds, settings=settings)
    summary |= {"outcomes": msgspec.to_builtins(outcomes)}
    publish(summary, args.out, args.json, table_of(outcomes, title))


if __name__ == "__main__":
    start("elastic", main)
