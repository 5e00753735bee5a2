"""Rewards by name: built in, from the entry-point group `spotlight.rewards`, or a `package.module:name` path.

A name refers to a factory, called without arguments, or to a scoring function (`function.py`). Paths are imported from
the installed packages, then from the reward folder: `reward.folder` of a run, else the working folder. The folder is
appended to `sys.path` of the process that loads the reward, so that no file of a user replaces a library.
"""

import inspect
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spotlight.compute.rewards.config import Options
from spotlight.compute.rewards.function import FunctionReward, check_options, is_scoring_function
from spotlight.compute.rewards.protocol import Reward
from spotlight.core.errors import RewardError, SpotlightError, suggestion

ENTRY_POINT_GROUP = "spotlight.rewards"
FOLDER_VARIABLE = "SPOTLIGHT_REWARD_FOLDER"
"""Environment variable that passes the reward folder to agents and their reward processes."""
BUILT_IN = {
    "ocr": "spotlight.compute.rewards.ocr.ocr_rewards:ocr",
    "ocr_exact": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_exact",
    "ocr_graded": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_graded",
    "ocr_judge": "spotlight.compute.rewards.ocr.ocr_rewards:ocr_judge",
    "geneval": "spotlight.compute.rewards.geneval.geneval_rewards:geneval",
    "geneval_strict": "spotlight.compute.rewards.geneval.geneval_rewards:geneval_strict",
    "jpeg": "spotlight.compute.rewards.jpeg:jpeg",
    "clip": "spotlight.compute.rewards.clip:clip",
    "pickscore": "spotlight.compute.rewards.pickscore:pickscore",
    "ocr_endpoint": "spotlight.compute.rewards.endpoint_rewards:ocr_endpoint",
    "rubric_endpoint": "spotlight.compute.rewards.endpoint_rewards:rubric_endpoint",
}


def names() -> list[str]:
    """Names of all registered rewards, sorted."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def is_path(name: str) -> bool:
    """Whether the name is a path, `package.module:name`."""
    return ":" in name


def check_name(name: str) -> None:
    """Raise if the name is not registered; a path is checked only by its import."""
    if not is_path(name) and name not in names():
        raise RewardError(f"there is no reward '{name}': {suggestion(name, names())}")


@contextmanager
def importing_from(folder: str | None) -> Iterator[None]:
    """Set the reward folder of all processes started in the block; None is the working folder."""
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


def create(name: str, options: Options | None = None) -> Reward:
    """Create the reward of this name or path, with its options as keyword arguments."""
    found, options = _imported(name), options or {}
    is_scoring = is_scoring_function(name, found)
    check_options(name, found, options)
    if is_scoring:
        return FunctionReward(name, found, options)
    called = f"'{name}' was called {f'with {options}' if options else 'without arguments'} to make a reward"
    try:
        reward: Reward = found(**options)
    except SpotlightError:
        raise
    except (Exception, SystemExit) as error:
        raise RewardError(
            f"{called}, but it raised {type(error).__name__} ({error}); fix it, or write a function of (images, "
            "prompts)."
        ) from error
    if not (callable(getattr(reward, "score", None)) and isinstance(getattr(reward, "version", None), str)):
        raise RewardError(
            f"{called}, but it returned a {type(reward).__name__} without score() and version; return an object that "
            "implements spotlight.compute.rewards.protocol.Reward, or write a function of (images, prompts)."
        )
    return reward


def required_options(name: str) -> list[str]:
    """Options without which the factory of this name makes no reward."""
    found = _imported(name)
    if not inspect.isfunction(found):
        return []
    options = [each for each in inspect.signature(found).parameters.values() if each.kind is each.KEYWORD_ONLY]
    return [option.name for option in options if option.default is option.empty]


def description(name: str, reward: Reward | None) -> str:
    """The reward's `description`, or the first line of the docstring of its factory, function or class."""
    own_text = getattr(reward, "description", None)
    if isinstance(own_text, str):
        return own_text
    own = () if reward is None or isinstance(reward, FunctionReward) else (type(reward),)
    documented = (inspect.getdoc(each) for each in (_imported(name), *own))
    return next((doc.strip().partition("\n")[0] for doc in documented if doc), "")


def _imported(name: str) -> Any:
    """Import the factory or scoring function of this name."""
    check_name(name)
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    path = EntryPoint(name, BUILT_IN.get(name, name), ENTRY_POINT_GROUP)
    point = path if name in BUILT_IN else registered.get(name, path)
    if is_path(name) and reward_folder() not in sys.path:
        sys.path.append(reward_folder())
    try:
        return point.load()
    except (Exception, SystemExit) as error:
        # A library of the same name has precedence, so the error names the imported file.
        taken = getattr(sys.modules.get(point.module), "__file__", None)
        where = taken or f"searched in {reward_folder()} and in the installed packages"
        is_missing = isinstance(error, ModuleNotFoundError) and str(error.name) in point.module
        is_nameless = isinstance(error, AttributeError) and taken is not None
        advice = (
            "write it as package.module:function, and set reward.folder if it is in another folder."
            if is_missing or is_nameless or not is_path(name)
            else "fix the error in that module."
        )
        raise RewardError(
            f"the reward '{name}' cannot be imported ({type(error).__name__}: {error}; {where}); {advice}"
        ) from error
