"""Rewards by name: built in, from the entry-point group `spotlight.rewards`, or a `pkg.mod:name` path.

Whatever the name resolves to is called without arguments and must return a Reward.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

from spotlight.compute.rewards.protocol import Reward
from spotlight.core.errors import RewardError, suggestion

ENTRY_POINT_GROUP = "spotlight.rewards"
BUILT_IN = {
    "ocr": "spotlight.compute.rewards.ocr.reward:ocr",
    "ocr_exact": "spotlight.compute.rewards.ocr.reward:ocr_exact",
    "ocr_graded": "spotlight.compute.rewards.ocr.reward:ocr_graded",
    "ocr_judge": "spotlight.compute.rewards.ocr.reward:ocr_judge",
    "geneval": "spotlight.compute.rewards.geneval.reward:geneval",
    "geneval_strict": "spotlight.compute.rewards.geneval.reward:geneval_strict",
    "jpeg": "spotlight.compute.rewards.jpeg:jpeg",
}


def names() -> list[str]:
    """Every reward that can be called by name."""
    return sorted({*BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))})


def check_name(name: str) -> None:
    """Refuse a name that nothing is registered under; a path is only known to be right once it is imported."""
    if ":" not in name and name not in names():
        raise RewardError(f"there is no reward '{name}': {suggestion(name, names())}")


def create(name: str) -> Reward:
    """The reward of that name or path, ready to score."""
    check_name(name)
    reward: Reward = _factory(name)()
    if not (hasattr(reward, "score") and isinstance(getattr(reward, "version", None), str)):
        raise RewardError(
            f"'{name}' gave a {type(reward).__name__}, which has no score() and version, so it cannot judge images; "
            "return an object that follows spotlight.compute.rewards.protocol.Reward."
        )
    return reward


def _factory(name: str) -> Any:
    registered = {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}
    path = EntryPoint(name, BUILT_IN.get(name, name), ENTRY_POINT_GROUP)
    try:
        return (path if name in BUILT_IN else registered.get(name, path)).load()
    except (ImportError, AttributeError) as error:
        raise RewardError(
            f"the reward '{name}' cannot be imported ({error}); write it as package.module:function, with its folder "
            "on PYTHONPATH."
        ) from error
