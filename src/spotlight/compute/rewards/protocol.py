"""Protocol of rewards: named, versioned, batched scorers of images.

In a run with several processes rewards run outside the training process (`reward_pool.py`). They receive only uint8
pixels and the prompt, and do not change torch's global state. `version` changes whenever the same image could score
differently. A plain function `f(images, prompts) -> one number per image` is a reward too (`function.py`);
docs/data_and_rewards.md is the user's guide.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from spotlight.core.types import Prompt

if TYPE_CHECKING:
    from spotlight.compute.rewards.config import Term

Image: TypeAlias = NDArray[np.uint8]
"""Height x width x 3, RGB."""

Floats: TypeAlias = NDArray[np.float64]

TOTAL = "reward"
"""Name of the reward among the figures of held-out pictures."""
JUDGE = "judge"
"""Name of the second judge's score among the components and figures of held-out pictures."""


@dataclass(frozen=True, kw_only=True)
class Scores:
    """`total[i]` is the reward of image i; `components` are reported beside it."""

    total: Floats
    components: Mapping[str, Floats] = field(default_factory=dict)


class Reward(Protocol):
    """Scores images of any size; one entry per image, in order.

    It may also have `description`, one line for `spotlight rewards`; without it the docstring's first line is printed.
    """

    name: str
    version: str

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores: ...


@runtime_checkable
class UsesDevice(Protocol):
    """A reward that can compute on a GPU; the device is set before it scores."""

    def use_device(self, device: str) -> None: ...


@runtime_checkable
class ChecksPrompts(Protocol):
    """A reward that checks prompts before a run starts, for those whose images it could not score."""

    def problem_with(self, prompt: Prompt) -> str | None:
        """What the prompt lacks and what to do; None if its images can be scored."""


class Scorer(Protocol):
    """Scores batches by a reward or its name: reward processes (`reward_pool.py`) or this process (`in_process.py`)."""

    def version(self, reward: "Term | str") -> str: ...

    def score(
        self,
        reward: "Term | str",
        images: Sequence[Image],
        prompts: Sequence[Prompt],
        progress: Callable[[int], None] = ...,
    ) -> Scores: ...

    def close(self) -> None: ...


ScoringFunction: TypeAlias = Callable[[Sequence[Image], Sequence[Prompt]], object]
"""A reward as a plain function: one number per image, in order, or a Scores."""
