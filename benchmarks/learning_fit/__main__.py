"""Fits of learning curves, for simulations: from result files and from measurements of the base models.

    python -m benchmarks.learning_fit [--measure] [--measure-ranks scenes] [--out docs/results/learning_fit]
    python -m benchmarks.learning_fit --curves docs/results/markets.json runs/curves

A fit is one file of `assets/learning` (its model: `spotlight.sim.learning`):

- `base` is the first score of the runs; `limit` and `rate` are least squares over all held-out points of plain and
  exploring runs. An iteration of a plain run is progress 1, one of an exploring run the payoff of its audits.
- `prompt_std` and `seed_std` are the spreads of the base model's rewards between and within prompts; `fidelity` is the
  correlation of previews with them, pooled within prompts, by steps. Both come from `--measure`, on the CPU. Exploring
  runs were audited at one step count, on weights one iteration old: all steps are scaled to meet that audit, with a
  limit of 0.94, the correlation of previews of all steps on such weights.

The settings of `benchmarks.headline` are not the recipes' own, so that benchmark has its own fits
(`benchmarks/headline/fits`), of the real curves in `--curves`: `headline_fit.py` says how. Curves that were computed
with other settings than the present ones of a task need these (`--set FAMILY:SECTION.KEY=VALUE`), because progress by
iteration follows from them.

`--measure-ranks` measures previews by second-order steps (`second_order`), and in fp8 (`fp8`), of the base model too.

Without these flags the last measurement in the `--out` file is used again.
"""

from pathlib import Path

from rich.console import Group

from benchmarks.lib.command import parser, start


def main() -> None:
    flags = parser("learning_fit", __doc__, out=Path("docs/results/learning_fit"))
    flags.add_argument("--measure", action="store_true", help="measure the base models again; a few minutes")
    flags.add_argument("--measure-ranks", nargs="+", default=[], metavar="FAMILY", help="of other previews; minutes")
    flags.add_argument("--device", default="cpu", help="of --measure-ranks")
    flags.add_argument("--curves", type=Path, nargs="+", default=[Path("docs/results/markets.json")], metavar="PATH")
    flags.add_argument("--set", dest="overrides", nargs="+", default=[], metavar="FAMILY:SECTION.KEY=VALUE")
    args = flags.parse_args()
    from msgspec.structs import replace

    from benchmarks.learning_fit.headline_fit import fit_headline
    from benchmarks.learning_fit.run import SUBJECTS, fit_all, measure, measured_before
    from benchmarks.lib.report import publish, summary_of, table_of

    measured = measured_before(args.out.with_suffix(".json"))
    for subject in SUBJECTS:
        if args.measure or subject.family not in measured:
            measured[subject.family] = measure(subject.family)
        if subject.family in args.measure_ranks:
            from benchmarks.learning_fit.preview_ranks import measure_ranks

            ranks = measure_ranks(subject.family, args.device)
            measured[subject.family] = replace(measured[subject.family], ranks=ranks)
    figures, table = fit_all(measured)
    figures |= fit_headline(args.curves, [tuple(each.split(":", 1)) for each in args.overrides])
    summary = summary_of("learning_fit", figures, [0])
    publish(summary, args.out, args.json, Group(table, table_of(summary)), measured=measured)


if __name__ == "__main__":
    start("learning_fit", main)
