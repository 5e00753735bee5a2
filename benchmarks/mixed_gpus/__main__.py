"""Rollouts shared by measured speed on fleets of several kinds of GPUs, against the same scheduler without speeds and
against an even split, in virtual time.

    python -m benchmarks.mixed_gpus [--seeds 1 2 3] [--json] [--out docs/results/mixed_gpus]

Twelve spot slots roll out and four reserved ones train; a kind of GPU is a speed relative to the H200 profile. The
control plane is the product's. A seed draws the order of the nodes and a deviation of up to 3 % of each node's speed.

    measured   the product: shares by the speeds that workers report
    blind      the product, but every worker has the mean speed of the fleet; slots still pull when they have room
    early      the product, but slots that still fetch new weights have no share
    even       every slot draws the same number of samples, as without a queue

`rollouts` compares rollout phases alone, `serial` whole iterations of `disaggregated-serial`, `pipelined` whole
iterations with GAP, TSP and TAG, `spotlight` those with previews. The ideal phase is all samples at the sum of the
speeds, in efficient batches, after one fetch of weights.
"""

from pathlib import Path

import msgspec

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("mixed_gpus", __doc__, out=Path("runs/mixed_gpus"))
    flags.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the order and speeds of the nodes")
    flags.add_argument("--quick", action="store_true", help="two fleets at 512 px only")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.mixed_gpus.figures import figures_of, table_of
    from benchmarks.mixed_gpus.run import cases_of, description, outcomes_of

    outcomes = outcomes_of(cases_of(args.seeds, args.quick))
    summary = summary_of("mixed_gpus", figures_of(outcomes), args.seeds, settings=description(outcomes))
    summary |= {"outcomes": msgspec.to_builtins(outcomes)}
    publish(summary, args.out, args.json, table_of(outcomes))


if __name__ == "__main__":
    start("mixed_gpus", main)
