"""Rewards by name: built in, from the entry-point group `spotlight.rewards`, or a `package.module:name` path.

A name leads to a factory, called without arguments, or to a scoring function (`function.py`). Paths are imported from
what is installed and then from the reward folder: `reward.folder` of a run, else the working folder. It is put on the
path of the process that loads the reward, after everything else, so that no file of a user replaces a library.
"""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spotlight.compute.rewards.function import FunctionReward, is_scoring_function
from spotlight.compute.rewards.protocol import Reward
from spotlight.core.errors import RewardError, SpotlightError, suggestion

ENTRY_POINT_GROUP = "spotlight.rewards"
FOLDER_VARIABLE = "SPOTLIGHT_REWARD_FOLDER"
"""Environment variable that carries the reward folder to agents and to the reward processes that they start."""
BUILT_IN = {
    "ocr": "spotlight.compute.rewards.ocr.ocr_rewards:ocr",
    "ocr_exact": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_exact",
    "ocr_graded": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_graded",
    "ocr_judge": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_judge",
    "geneval": "spotlight.compute.rewards.geneval.geneval_rewards:geneval",
    "geneval_strict": "spotlight.compute.rewards.geneval.geneval_rewards:geneval_strict",
    "jpeg": "spotlight.compute.rewards.jpeg:jpeg",
}


def names() -> list[str]:
    """Every reward that can be called by name."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def is_path(name: str) -> bool:
    """Whether it is `package.module:name`."""
    return ":" in name


def check_name(name: str) -> None:
    """Refuse a name that nothing is registered under; a path is only known to be right once it is imported."""
    if not is_path(name) and name not in names():
        raise RewardError(f"there is no reward '{name}': {suggestion(name, names())}")


@contextmanager
def importing_from(folder: str | None) -> Iterator[None]:
    """Inside the block this is the reward folder of all processes that are started; None is the working folder."""
    before = os.environ.pop(FOLDER_VARIABLE, None)
    if folder is not None:
        os.environ[FOLDER_VARIABLE] = folder
    try:
        yield
    finally:
        os.environ.pop(FOLDER_VARIABLE, None)
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before


def reward_folder() -> str:
    return os.environ.get(FOLDER_VARIABLE) or os.getcwd()


def create(name: str) -> Reward:
    """The reward of that name or path, ready to score."""
    found = _found(name)
    if is_scoring_function(name, found):
        return FunctionReward(name, found)
    try:
        reward: Reward = found()
    except SpotlightError:
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"'{name}' was called without arguments to make a reward, but it raised {type(error).__name__} ({error}); "
            "fix it there, or write a function of (images, prompts)."
        ) from error
    if not (callable(getattr(reward, "score", None)) and isinstance(getattr(reward, "version", None), str)):
        raise RewardError(
            f"'{name}' was called without arguments to make a reward, but it gave a {type(reward).__name__} "
            "without score() and version; return an object that follows spotlight.compute.rewards.protocol.Reward, or "
            "write a function of (images, prompts)."
        )
    return reward


def description(name: str, reward: Reward) -> str:
    """What the reward means: its `description`, or the first line of the docstring of what its name leads to."""
    told = getattr(reward, "description", None)
    if isinstance(told, str):
        return told
    own = () if isinstance(reward, FunctionReward) else (type(reward),)
    documented = (inspect.getdoc(each) for each in (_found(name), *own))
    return next((doc.strip().partition("\n")[0] for doc in documented if doc), "")


def _found(name: str) -> Any:
    """What the name leads to: a factory or a scoring function."""
    check_name(name)
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    path = EntryPoint(name, BUILT_IN.get(name, name), ENTRY_POINT_GROUP)
    point = path if name in BUILT_IN else registered.get(name, path)
    if is_path(name) and reward_folder() not in sys.path:
        sys.path.append(reward_folder())
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        # A library of the same name comes first, and then it is good to know which file was taken.
        taken = getattr(sys.modules.get(point.module), "__file__", None)
        where = taken or f"searched in {reward_folder()} and in what is installed"
        is_missing = isinstance(error, ModuleNotFoundError) and str(error.name) in point.module
        is_nameless = isinstance(error, AttributeError) and taken is not None
        advice = (
            "write it as package.module:function, and set reward.folder where it is in another folder."
            if is_missing or is_nameless or not is_path(name)
            else "fix it there."
        )
        raise RewardError(
            f"the reward '{name}' cannot be imported ({type(error).__name__}: {error}; {where}); {advice}"
        ) from error
