"""Rows per worker on one machine: seconds of a rollout phase with fixed numbers of rows, and with `cluster.rows: auto`.

    python -m benchmarks.rows [--recipe words-large-nft] [--arms 8 16 32 64 128 256 auto] [--seeds 0] [--json]

Every arm is a short real run of the recipe, one reserved and two spot processes, through `spotlight train`. On a GPU
they share it. There are no previews: a planner would fit their number to the speed of the slots, and the arms would
have different work. The rollout phase is from the first request of an iteration to its last score in the journal; the
first two iterations do not count. Arms below 32 rows are slow and serve as comparison, so fewer of their iterations
count.

rows_auto_vs_best: the median rollout phase with auto over that of the best fixed number of rows; its bounds are the
quickest and the slowest counted phase with auto over that same median. iteration_auto_vs_best is the same of whole
iterations.

Runs in the folder --cells are not repeated, so an interrupted sweep resumes, and further seeds can be added. On an H200
a sweep takes about 7 minutes, of which the workers' starts are two thirds.
"""

from pathlib import Path

from benchmarks.lib.command import parser, start

ARMS = ("8", "16", "32", "64", "128", "256", "auto")


def main() -> None:
    flags = parser("rows", __doc__)
    flags.add_argument("--recipe", default="words-large-nft", help="words-nft for a try on a CPU")
    flags.add_argument("--arms", nargs="+", default=list(ARMS), help="numbers of rows, and auto")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--iterations", type=int, default=4, help="number that counts, after the warm-up")
    flags.add_argument("--cells", type=Path, default=Path("runs/rows"), help="folder of finished runs")
    args = flags.parse_args()
    from benchmarks.lib.local_runs import WARM_UP
    from benchmarks.lib.report import publish, summary_of
    from benchmarks.rows.run import SETTINGS, figures, measured

    cells = [measured(args.recipe, arm, seed, args.iterations, args.cells) for seed in args.seeds for arm in args.arms]
    settings = {"recipe": args.recipe, "changes": SETTINGS, "iterations": args.iterations, "warm_up": WARM_UP}
    seeds = sorted({cell.seed for cell in cells})
    publish(summary_of("rows", figures(cells), seeds, settings=settings), args.out, args.json, cells=cells)


if __name__ == "__main__":
    start("rows", main)
