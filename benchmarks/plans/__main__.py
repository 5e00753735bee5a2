"""Which previews reach the score soonest, by the number of spot slots?

    python -m benchmarks.plans [--family scenes words-large] [--spot 0 2 4 8 16] [--jobs 2] [--out docs/results/plans]

Every plan of a grid (seeds and steps per prompt, candidates, scouts, fp8) is priced and valued for every fleet of 4
reserved and some spot slots that are never lost, in the settings of the headline:
- seconds per iteration, from a short simulated run on each of the two profiles (`run.py`);
- progress per iteration, from the learning model, whose previews rank by the measured correlations of their steps,
  solver and precision (`figures.py`).
Hours are those to the final score of `reserved-only`, relative to those of the plan that the fits are of. Prompts and
updates per iteration are not searched, because the learning model cannot tell what they are worth; benchmarks/batches/
did with real numbers.

Clocks are kept under --clocks, and a repeated command resumes.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start
from benchmarks.lib.parallel import add_jobs


def main() -> None:
    flags = parser("plans", __doc__, out=Path("runs/plans"))
    flags.add_argument("--family", nargs="+", choices=("scenes", "words-large"), default=["scenes", "words-large"])
    flags.add_argument("--spot", type=int, nargs="+", default=[0, 2, 4, 8, 16])
    flags.add_argument("--clocks", type=Path, default=Path("runs/plan-clocks"))
    add_jobs(flags)
    args = flags.parse_args()
    from benchmarks.lib import merge
    from benchmarks.lib.parallel import run_all
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.plans.figures import SEEDS, figures_of, searched
    from benchmarks.plans.run import PlanClock, run_task, tasks_of

    args.clocks.mkdir(parents=True, exist_ok=True)
    tasks = tasks_of(args.family, args.spot, args.clocks)
    run_all(run_task, tasks, args.jobs, "short runs")
    found = [merge.read(task.path, PlanClock, "plans") for task in tasks]
    publish(summary_of("plans", figures_of(found), SEEDS), args.out, args.json, searched=searched(found))


if __name__ == "__main__":
    start("plans", main)
