"""Time and money to the same score: Spotlight against other ways to use the same kinds of GPUs, co-simulated.

    python -m benchmarks.headline --family words-large --seeds 0 1 2 --device cuda --setups reserved-only spotlight
    python -m benchmarks.headline --family words-large --seeds 0 1 2 --remember runs/headline/memory
    python -m benchmarks.headline --merge runs/headline/*-seed?.json --out docs/results/headline
    python -m benchmarks.headline --curves docs/results/headline.json --family scenes --seeds 0 1 --out runs/clocks
    python -m benchmarks.headline --curves docs/results/headline.json --merge runs/clocks/*.json --out ...
    python -m benchmarks.headline --same-batches --setups pipelined spotlight-fixed spotlight-pipelined ...
    python -m benchmarks.headline --markets FOLDER --draw 3 --numerics model --seeds 10 11 --family scenes words-large
    python -m benchmarks.headline --by-market --merge runs/headline --check runs/real --out docs/results/markets

The tiny model of the family really trains (NFT) while a virtual clock charges the profile of Qwen-Image 20 B on H200s:
4 reserved and 8 spot slots, machines lost by a trace. Every run is a cell with its own file under --out and is
skipped when that file exists; runs of several machines are joined with --merge. Numbers that do not depend on machines
are computed once per family and seed (`--remember` keeps them in a file), so setups without exploration share one
learning curve and only their clocks differ.

A trace is a shipped name or a file, with `@H` to begin at hour H. Settings of the tasks are in `setups.py`, and each
setup has those with which it is quickest: groups, timesteps, prompts and updates were chosen in sweeps of one or two
seeds by the hours that `reserved-only` takes; previews, and the prompts and updates of setups that explore, by the
hours that `spotlight-fixed` takes (benchmarks/batches/). With `--same-batches` all learn in those of `reserved-only`.

With `--curves` only the clocks are simulated, in `--jobs` processes, and scores are those of an earlier result or of a
folder of cells with real numbers (`real_curves.py`). So other profiles need no real numbers again.

With `--markets` every task runs on windows of the traces of a folder (`market_windows.py` has the rule of `--draw`), in
`--jobs` processes. `--by-market` reports such cells by the spot slots that a race held (`market_figures.py`), and with
`--curves` checks the modelled scores against real ones of the same seeds, which setups with fixed plans have on all
machines.
"""

import argparse
from itertools import product
from pathlib import Path

from benchmarks.headline.setups import EXPLORING, PROFILES, SETUPS, TASKS, WITH_ONE_CURVE
from benchmarks.lib.command import parser, start
from benchmarks.lib.parallel import add_jobs


def arguments() -> argparse.Namespace:
    flags = parser("headline", __doc__, out=Path("runs/headline"))
    flags.add_argument("--family", nargs="+", choices=tuple(TASKS), default=["words-large"])
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--setups", nargs="+", choices=SETUPS, help="default: all; with --curves those that have one")
    flags.add_argument("--profiles", nargs="+", default=list(PROFILES))
    flags.add_argument("--traces", nargs="+", default=["calm", "bulk"], metavar="TRACE[@HOUR]")
    flags.add_argument("--numerics", choices=("model", "real"), default="real")
    flags.add_argument("--device", default="cpu")
    flags.add_argument("--remember", type=Path, help="folder of numbers that were computed before")
    flags.add_argument("--same-batches", action="store_true", help="setups that explore learn in the others' batches")
    flags.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    flags.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join cells instead of running")
    flags.add_argument(
        "--curves", type=Path, nargs="+", metavar="PATH", help="take scores of results or folders of cells"
    )
    flags.add_argument("--ours", choices=EXPLORING, default="spotlight-fixed", help="the setup that others compare to")
    flags.add_argument("--numbers", default="", help="with --merge: where remembered numbers had been computed")
    markets = flags.add_argument_group("races over many markets")
    markets.add_argument(
        "--markets", type=Path, metavar="FOLDER", help="of trace files; --traces and --setups are unused"
    )
    markets.add_argument("--files", default="*.csv", metavar="GLOB", help="the folder's traces; default *.csv")
    markets.add_argument("--offsets", type=float, nargs="+", metavar="HOUR", help="every file from these hours on")
    markets.add_argument("--windows", type=Path, metavar="FILE", help="CSV of the windows: file,start_h")
    markets.add_argument("--draw", type=int, metavar="N", help="draw N windows of each class of capacity")
    markets.add_argument("--draw-seed", type=int, default=0)
    markets.add_argument("--by-market", action="store_true", help="with --merge: report by spot slots held")
    markets.add_argument("--check", type=Path, metavar="FOLDER", help="with --by-market: cells with real numbers")
    add_jobs(markets)
    args = flags.parse_args()
    args.setups = args.setups or (WITH_ONE_CURVE if args.curves else SETUPS)
    return args


def main() -> None:
    args = arguments()
    if args.by_market:
        from benchmarks.headline.market_runs import present
        from benchmarks.headline.real_curves import checked_cells

        present(args.merge or [args.out], checked_cells(args), args)
        return
    if args.merge:
        from benchmarks.headline.real_curves import present_merged

        present_merged(args)
        return
    if args.curves:
        from benchmarks.headline.real_curves import run_clocks

        run_clocks(args)
        return
    if args.markets:
        from benchmarks.headline.market_runs import run_markets

        run_markets(args)
        return
    from benchmarks.headline.run import run_seed

    args.out.mkdir(parents=True, exist_ok=True)
    for family, seed in product(args.family, args.seeds):
        run_seed(argparse.Namespace(**{**vars(args), "family": family}), seed)


if __name__ == "__main__":
    start("headline", main)
