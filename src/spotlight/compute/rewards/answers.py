"""What holds for every answer of a reward, wherever it was computed.

Invariant: scores that pass `checked` have one finite number per image, in order (tests/unit/test_rewards_pool.py).
"""

from collections.abc import Sequence

import numpy as np

from spotlight.compute.rewards.protocol import Floats, Image, Scores
from spotlight.core.errors import RewardError
from spotlight.core.types import Prompt


def paired(images: Sequence[Image], prompts: Sequence[Prompt]) -> None:
    """Refuse images that do not have one prompt each."""
    if len(images) != len(prompts):
        raise RewardError(f"{len(images)} images came with {len(prompts)} prompts; pass one prompt per image.")


def raised(name: str, error: Exception) -> RewardError:
    """What a user hears of an exception that came out of a reward."""
    return RewardError(
        f"the reward '{name}' raised {type(error).__name__} ({error}) where it should have scored; fix it there."
    )


def joined(parts: Sequence[Scores]) -> Scores:
    """Parts of a batch one after the other."""
    if not parts:
        return Scores(total=np.zeros(0))
    names = parts[0].components.keys()
    return Scores(
        total=np.concatenate([part.total for part in parts]),
        components={name: np.concatenate([part.components[name] for part in parts]) for name in names},
    )


def checked(name: str, scores: Scores, count: int) -> Scores:
    """The scores, or a RewardError that names the reward and the image."""
    return Scores(
        total=_checked_column(f"the reward '{name}'", scores.total, count),
        components={
            part: _checked_column(f"the component '{part}' of the reward '{name}'", values, count)
            for part, values in scores.components.items()
        },
    )


def _checked_column(what: str, values: Floats, count: int) -> Floats:
    column: Floats = np.asarray(values, dtype=np.float64)
    if column.shape != (count,):
        raise RewardError(
            f"{what} returned scores of shape {column.shape} for {count} images, so it is unclear which belongs to "
            "which; return one number per image, in order."
        )
    bad = np.flatnonzero(~np.isfinite(column))
    if bad.size:
        raise RewardError(
            f"{what} returned {column[bad[0]]} for image {bad[0]} of {count} ({bad.size} non-finite in all), which "
            "would poison its group; return a finite number for every image."
        )
    return column
