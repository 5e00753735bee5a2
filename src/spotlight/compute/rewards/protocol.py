"""What a reward is: a named, versioned, batched judge of images.

Rewards run outside the training process (`pool.py`), see only uint8 pixels and the prompt, and never touch torch's
global state. `version` changes whenever the same image could score differently.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spotlight.core.types import Prompt

Image: TypeAlias = NDArray[np.uint8]
"""Height x width x 3, RGB."""

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """`total[i]` is what image i is trained on; `components` are reported beside it."""

    total: Floats
    components: Mapping[str, Floats] = field(default_factory=dict)


class Reward(Protocol):
    """Scores images of any size; one entry per image, in order."""

    name: str
    version: str

    def score(self, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores: ...


RewardFactory: TypeAlias = Callable[[], Reward]
"""What the registry and a `pkg.mod:name` path resolve to; called once in each reward process."""
