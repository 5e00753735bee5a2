"""Does training on samples one version old learn as well? Synchronous against asynchronous runs, co-simulated.

    python -m benchmarks.asynchrony --seeds 0 1 2                                    # `words`, both losses, on a CPU
    python -m benchmarks.asynchrony --seeds 0 --loss nft --device cuda               # a part of it, on a GPU
    python -m benchmarks.asynchrony --merge runs/asynchrony/*-seed?.json --out docs/results/asynchrony --json

The tiny model of the family really trains while a virtual clock charges the profile of Qwen-Image 20 B on H200s for 4
reserved and 8 spot slots; neither arm explores. Both arms share every setting, prompts and seeds, and train for the
same number of iterations. In the asynchronous one half of the groups of every iteration but the first (--share) are
drawn with the weights before its own: deterministic mode admits just as many whatever the clock says, so the arm is the
worst that the setting allows, not what happened to be idle.

Each run writes its own file under --out and is skipped when that file exists, so an interrupted benchmark goes on by
being repeated, and runs of several machines are joined with --merge.
"""

import argparse
import shutil
import sys
import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError
from spotlight.folder import config_digest
from spotlight.surface.compare.simulated import Contest, run_one
from spotlight.surface.simulating import Assumed, NumericsKind, numerics_for

if TYPE_CHECKING:
    from spotlight.runtime.sim.numerics import Numerics

LOSSES = ("nft", "flow_grpo")
SETUP = "spot-no-explore"
PROFILE = "h200-qwen-image-512"


class Arm(StrEnum):
    SYNCHRONOUS = "synchronous"
    ASYNCHRONOUS = "asynchronous"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=("words", "words-large", "scenes"), default="words")
    parser.add_argument("--loss", nargs="+", choices=LOSSES, default=list(LOSSES))
    parser.add_argument("--arm", nargs="+", choices=tuple(Arm), default=list(Arm))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--share", type=float, default=0.5, help="of an iteration's groups that are stale")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--set", dest="overrides", nargs="*", default=[], metavar="SECTION.KEY=VALUE")
    parser.add_argument("--out", type=Path, default=Path("runs/asynchrony"))
    parser.add_argument("--merge", type=Path, nargs="+", metavar="FILE", help="join result files instead of running")
    parser.add_argument("--json", action="store_true", help="end with one JSON object")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    # Heavy imports wait until here: reward processes import this file again and need none of them.
    from benchmarks.asynchrony import figures as results

    if args.merge:
        results.present([results.load(path) for path in args.merge], args.out, args.json)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for loss in args.loss:
        for seed in args.seeds:
            run_seed(args, loss, seed)
    paths = [path_of(args, loss, Arm(arm), seed) for loss in args.loss for arm in args.arm for seed in args.seeds]
    results.present([results.load(path) for path in paths], args.out / "asynchrony", args.json)


def run_seed(args: argparse.Namespace, loss: str, seed: int) -> None:
    """The arms that are not there yet, over one set of numbers."""
    contests = {Arm(arm): contest_of(args, loss, Arm(arm), seed) for arm in args.arm}
    left = [arm for arm in contests if not is_done(path_of(args, loss, arm, seed), contests[arm], seed)]
    if not left:
        return
    with numerics_for(NumericsKind.REAL, contests[left[0]].config(SETUP, seed)) as numerics:
        for arm in left:
            run_arm(args, loss, arm, contests[arm], seed, numerics)


def run_arm(args: argparse.Namespace, loss: str, arm: Arm, contest: Contest, seed: int, numerics: "Numerics") -> None:
    from benchmarks.asynchrony import figures as results

    began = time.monotonic()
    shutil.rmtree(contest.folder, ignore_errors=True)
    folder = run_one(contest, SETUP, contest.config(SETUP, seed), numerics, progress)
    result = results.read_run(
        folder,
        family=args.family,
        loss=loss,
        arm=arm.value,
        seed=seed,
        settings=settings_of(contest, seed),
        seconds=time.monotonic() - began,
    )
    results.save(result, path_of(args, loss, arm, seed))
    shutil.rmtree(contest.folder)


def progress(name: str, done: int, iterations: int) -> None:
    print(f"{name}: iteration {done} of {iterations}", file=sys.stderr, flush=True)


def contest_of(args: argparse.Namespace, loss: str, arm: Arm, seed: int) -> Contest:
    is_stale = arm is Arm.ASYNCHRONOUS
    changes = ["deterministic=true", f"model.device={args.device}", f"pipeline.asynchrony={str(is_stale).lower()}"]
    if is_stale:
        changes.append(f"pipeline.stale_share={args.share}")
    return Contest(
        task=f"{args.family}-{loss.replace('_', '-')}",
        setups=(SETUP,),
        seeds=(seed,),
        overrides=(*changes, *args.overrides),
        assumed=Assumed(profile=Profile.load(PROFILE), prices=PriceTable.load(None)),
        kind=NumericsKind.REAL,
        learning=None,
        folder=args.out / "runs" / path_of(args, loss, arm, seed).stem,
    )


def path_of(args: argparse.Namespace, loss: str, arm: Arm, seed: int) -> Path:
    return args.out / f"{args.family}-{loss}-{arm.value}-seed{seed}.json"


def settings_of(contest: Contest, seed: int) -> str:
    return config_digest(contest.config(SETUP, seed).model_dump(mode="json"))


def is_done(path: Path, contest: Contest, seed: int) -> bool:
    from benchmarks.asynchrony import figures as results

    if not path.exists():
        return False
    if results.load(path).settings != settings_of(contest, seed):
        raise InputError(f"{path} was made with other settings; choose another --out, or delete it to run anew.")
    print(f"{path} exists; not run again", file=sys.stderr)
    return True
