"""Rewards in the calling process, on its device: for programs that draw, judge and train in one process.

Quicker than reward processes where a GPU reads the text; but nothing stops a reward that hangs or crashes, so a run
with workers uses `pool.py`. Invariant: the answers are those of the pool (tests/unit/test_rewards_in_process.py).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.answers import checked, joined, paired, raised
from spotlight.compute.rewards.config import RewardConfig
from spotlight.compute.rewards.protocol import Image, Reward, Scorer, Scores, UsesDevice
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.core.errors import SpotlightError
from spotlight.core.types import Prompt

CHUNK = 512
"""Images per call of a reward: what fills a GPU; whole shards of the pool, so that the CPU batches the same way."""


class InProcessScorer:
    """Scores batches by reward name; loads a reward at its first use."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._loaded: dict[str, Reward] = {}

    def version(self, name: str) -> str:
        return self._reward(name).version

    def score(
        self,
        name: str,
        images: Sequence[Image],
        prompts: Sequence[Prompt],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Scores:
        """One score per image, in order; `progress` hears how many are scored."""
        paired(images, prompts)
        parts = []
        for start in range(0, len(images), CHUNK):
            chunk = slice(start, start + CHUNK)
            parts.append(self._scored(name, images[chunk], prompts[chunk]))
            progress(min(start + CHUNK, len(images)))
        return joined(parts)

    def close(self) -> None:
        self._loaded.clear()

    def _scored(self, name: str, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        reward = self._reward(name)
        try:
            scores = reward.score(images, prompts)
        except SpotlightError:
            raise
        except (Exception, SystemExit) as error:
            raise raised(name, error) from error
        return checked(name, scores, len(images))

    def _reward(self, name: str) -> Reward:
        if name not in self._loaded:
            reward = registry.create(name)
            if isinstance(reward, UsesDevice):
                reward.use_device(self._device)
            self._loaded[name] = reward
        return self._loaded[name]


def scorer(config: RewardConfig, device: str) -> AbstractContextManager[Scorer]:
    """As many reward processes as the recipe says, or this process and its device where it says none."""
    if config.processes:
        return closing(RewardPool(config.processes, config.timeout_s))
    return closing(InProcessScorer(device))
