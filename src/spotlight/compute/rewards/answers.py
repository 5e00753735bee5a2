"""Checks of a reward's return values, in a reward process or in this one.

Invariant: scores that pass `checked` have one finite number per image, in order (tests/unit/test_rewards_pool.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from spotlight.compute.rewards.protocol import Floats, Image, Scores
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt


def paired(images: Sequence[Image], prompts: Sequence[Prompt]) -> None:
    """Raise unless there is one prompt per image."""
    if len(images) != len(prompts):
        raise RewardError(f"{len(images)} images came with {len(prompts)} prompts; pass one prompt per image.")


def raised(name: str, error: BaseException) -> RewardError:
    """The RewardError for an exception of the reward."""
    return RewardError(
        f"the reward '{name}' raised {type(error).__name__} ({error}) instead of returning scores; fix the reward."
    )


def joined(parts: Sequence[Scores]) -> Scores:
    """Concatenate the scores of a batch's parts."""
    if not parts:
        return Scores(total=np.zeros(0))
    names = parts[0].components.keys()
    return Scores(
        total=np.concatenate([part.total for part in parts]),
        components={name: np.concatenate([part.components[name] for part in parts]) for name in names},
    )


def checked(name: str, answer: object, count: int) -> Scores:
    """Convert a Scores, or one number per image, to a checked Scores; else raise a RewardError that describes it."""
    if not isinstance(answer, Scores):
        return Scores(total=_checked_column(f"the reward '{name}'", answer, count))
    return Scores(
        total=_checked_column(f"the reward '{name}'", answer.total, count),
        components={
            part: _checked_column(f"the component '{part}' of the reward '{name}'", values, count)
            for part, values in answer.components.items()
        },
    )


def _checked_column(what: str, values: object, count: int) -> Floats:
    column = _numbers(values)
    if column is None or column.shape != (count,):
        raise RewardError(
            f"{what} returned {_described(values)} for {count} images, but should return a list or array of {count} "
            "numbers; return one number per image, in order."
        )
    bad = np.flatnonzero(~np.isfinite(column))
    if bad.size:
        raise RewardError(
            f"{what} returned {column[bad[0]]} for image {bad[0]} of {count} ({bad.size} non-finite in all), which "
            "would make its group's advantages non-finite; return a finite number for every image."
        )
    return column


def _numbers(values: object) -> Floats | None:
    """The values as floats; None if they are not numbers, including strings that NumPy would parse."""
    if isinstance(values, (str, bytes, dict, set)) or values is None:
        return None
    try:
        found = np.asarray([_on_host(value) for value in values] if isinstance(values, list) else _on_host(values))
        return found.astype(np.float64) if found.dtype.kind in "biuf" else None
    except (TypeError, ValueError, RuntimeError):
        return None


def _on_host(value: Any) -> Any:
    """A torch tensor of any device and type in a form that NumPy reads; any other value unchanged."""
    return value.detach().cpu().double() if hasattr(value, "detach") else value


def _described(values: object) -> str:
    """`a list of 3 numbers`, `a list of 8 strings`, `an array of shape (8, 1)`, `a dict`, `None`."""
    if values is None:
        return "None"
    shape = getattr(values, "shape", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)} and type {getattr(values, 'dtype', 'unknown')}"
    if isinstance(values, (list, tuple)):
        kind = " and ".join(sorted(set(map(_kind, values)))) or "number"
        return f"a {type(values).__name__} of {len(values)} {kind}{'' if len(values) == 1 else 's'}"
    return f"a {type(values).__name__}"


def _kind(value: object) -> str:
    if isinstance(value, (int, float, np.number, np.bool_)) or getattr(value, "shape", None) == ():
        return "number"
    return {"str": "string", "NoneType": "None"}.get(type(value).__name__, type(value).__name__)
