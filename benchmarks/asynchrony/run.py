"""One seed of one loss: both arms over one set of numbers, in virtual time."""

import shutil
import sys
import time
from argparse import Namespace
from pathlib import Path

from benchmarks.asynchrony.figures import ASYNCHRONOUS, read, read_run
from benchmarks.lib import merge
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError
from spotlight.folder import config_digest
from spotlight.sim.numerics import Numerics
from spotlight.surface.compare.simulated import Contest, run_one
from spotlight.surface.simulating import Assumed, NumericsKind, numerics_for

SETUP = "spot-no-explore"
PROFILE = "h200-qwen-image-512"


def run_seed(args: Namespace, loss: str, seed: int) -> None:
    """Run the arms that have no result yet."""
    contests = {arm: contest_of(args, loss, arm, seed) for arm in args.arm}
    left = [arm for arm in contests if not is_done(path_of(args, loss, arm, seed), contests[arm], seed)]
    if not left:
        return
    with numerics_for(NumericsKind.REAL, contests[left[0]].config(SETUP, seed)) as numerics:
        for arm in left:
            run_arm(args, loss, arm, contests[arm], seed, numerics)


def run_arm(args: Namespace, loss: str, arm: str, contest: Contest, seed: int, numerics: Numerics) -> None:
    began = time.monotonic()
    shutil.rmtree(contest.folder, ignore_errors=True)
    folder = run_one(contest, SETUP, contest.config(SETUP, seed), numerics, progress)
    result = read_run(
        folder,
        family=args.family,
        loss=loss,
        arm=arm,
        seed=seed,
        settings=settings_of(contest, seed),
        seconds=time.monotonic() - began,
    )
    merge.write(path_of(args, loss, arm, seed), result)
    shutil.rmtree(contest.folder)


def progress(name: str, done: int, iterations: int) -> None:
    print(f"{name}: iteration {done} of {iterations}", file=sys.stderr, flush=True)


def contest_of(args: Namespace, loss: str, arm: str, seed: int) -> Contest:
    is_stale = arm == ASYNCHRONOUS
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


def path_of(args: Namespace, loss: str, arm: str, seed: int) -> Path:
    return args.out / f"{args.family}-{loss}-{arm}-seed{seed}.json"


def settings_of(contest: Contest, seed: int) -> str:
    return config_digest(contest.config(SETUP, seed).model_dump(mode="json"))


def is_done(path: Path, contest: Contest, seed: int) -> bool:
    if not path.exists():
        return False
    if read(path).settings != settings_of(contest, seed):
        raise InputError(f"{path} was made with other settings; choose another --out, or delete it to run again.")
    print(f"{path} exists; not run again", file=sys.stderr)
    return True
