"""What placing rollouts by zone and by age of the machine brings when zones lose all their machines at one instant,
without notice, in virtual time.

    python -m benchmarks.zones [--seeds 1 2 3] [--traces ZONE_A ZONE_B ZONE_C] [--json] [--out docs/results/zones]

Spot nodes of three zones draw all rollouts, reserved slots train. The control plane is the product's; a rule is a
scheduler that changes the speeds from which it computes shares (`policies.py`). Markets are generated, one per seed:
lifetimes are Lomax distributed, so that old machines are safer, and each zone also loses all its nodes at once. With
--traces they are recorded counts, a file per zone; a seed takes the window around another bulk loss, and the nodes that
joined last are lost first.

    none       the product: shares by speed alone
    spread     equally many rows for every zone, whatever its number of slots
    survival   shares by speed times the chance that a machine of this age survives a batch
    older      the same over ten minutes: clearly fewer rows for young machines
    notice     no rule, but every loss is announced 5 s before, so that no step is lost: what a perfect forecast of
               single losses would bring

Each is measured with the usual commits and without any. A ratio compares the same market. --lives counts losses per
node-hour by age of the node in recorded traces.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("zones", __doc__, out=Path("runs/zones"))
    flags.add_argument("--seeds", type=int, nargs="+", default=[11, 12, 13, 14, 15, 16], help="of the markets")
    flags.add_argument("--traces", nargs="+", default=[], help="recorded counts, one file per zone")
    flags.add_argument("--lives", nargs="+", default=[], help="recorded traces whose losses are counted by age")
    flags.add_argument("--quick", action="store_true", help="one kind of work only")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.zones.figures import figures_of, table_of
    from benchmarks.zones.hazard import hazards_of
    from benchmarks.zones.run import cases_of, description, outcomes_of

    outcomes = outcomes_of(cases_of(args.seeds, args.traces, args.quick))
    settings = description(args.seeds, args.traces)
    figures = figures_of(outcomes) | hazards_of(args.lives)
    summary = summary_of("zones", figures, args.seeds, settings=settings)
    summary |= {"outcomes": msgspec.to_builtins(outcomes)}
    publish(summary, args.out, args.json, table_of(outcomes))


if __name__ == "__main__":
    start("zones", main)
