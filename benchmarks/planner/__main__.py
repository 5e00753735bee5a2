"""The bandit against every fixed plan of a sweep, in virtual time.

python -m benchmarks.planner [--workloads words scenes large changing changing_short] [--seeds 0 1] [--jobs 2]
                             [--parts FOLDER] [--json] [--out docs/results/planner]

The payoff of an iteration is its progress in the learning model: the variance of its groups' rewards over that of
unselected groups, so 1 without previews. Fixed plans preview `seeds` of every prompt with `steps` and end with
training, as any plan does. All are screened over a few iterations, at every number of spot slots of the workload; those
within a tenth of the best, and the default, are run in full with every seed. The best fixed plan has the largest mean
payoff over all seeds and is known only afterwards. The bandit starts with only the fidelity of the shipped models'
previews as its prior.
"""

import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.lib.command import parser, start

NAMES = ("words", "scenes", "large", "changing", "changing_short")


def main() -> None:
    flags = parser("planner", __doc__, out=Path("runs/planner"))
    flags.add_argument("--workloads", nargs="+", default=list(NAMES), choices=NAMES)
    flags.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    flags.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    flags.add_argument("--parts", type=Path, help="folder of finished parts, to resume from")
    args = flags.parse_args()
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.planner.figures import Compared, figures, fixed_payoffs
    from benchmarks.planner.plot import draw
    from benchmarks.planner.run import WORKLOADS, runs_of

    with ProcessPoolExecutor(args.jobs) as executor:
        runs = {name: runs_of(WORKLOADS[name], args.seeds, args.parts, executor) for name in args.workloads}
    compared = [Compared.of(WORKLOADS[name], found) for name, found in runs.items()]
    draw(compared, args.out.with_suffix(".png"))
    summary = summary_of("planner", figures(compared), args.seeds)
    publish(summary, args.out, args.json, fixed_payoffs=fixed_payoffs(compared))


if __name__ == "__main__":
    start("planner", main)
