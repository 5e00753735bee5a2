"""Rewards in the calling process, on its device: for programs that sample, score and train in one process.

Faster than reward processes if a GPU reads the text, but without protection from a reward that hangs or crashes, so a
run with workers uses `reward_pool.py`. Invariant: scores equal the pool's (tests/unit/test_rewards_in_process.py).
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.answers import checked, joined, paired, raised
from spotlight.compute.rewards.config import RewardConfig, Term
from spotlight.compute.rewards.protocol import Image, Reward, Scorer, Scores, UsesDevice
from spotlight.compute.rewards.reward_pool import RewardPool, term_of
from spotlight.core.errors import SpotlightError
from spotlight.core.types import Prompt

CHUNK = 512
"""Images per call of a reward: fills a GPU, and is a multiple of the pool's shard, so that CPU batches are the same."""


class InProcessScorer:
    """Scores batches by reward; a name is a reward without options. Loads a reward at its first use."""

    def __init__(self, device: str = "cpu") -> None:
        self._device = device
        self._loaded: dict[str, Reward] = {}

    def version(self, reward: Term | str) -> str:
        return self._reward(term_of(reward)).version

    def score(
        self,
        reward: Term | str,
        images: Sequence[Image],
        prompts: Sequence[Prompt],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Scores:
        """Return one score per image, in order; `progress` is called with the number of scored images."""
        paired(images, prompts)
        parts = []
        for start in range(0, len(images), CHUNK):
            chunk = slice(start, start + CHUNK)
            parts.append(self._scored(term_of(reward), images[chunk], prompts[chunk]))
            progress(min(start + CHUNK, len(images)))
        return joined(parts)

    def close(self) -> None:
        self._loaded.clear()

    def _scored(self, term: Term, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
        reward = self._reward(term)
        try:
            scores = reward.score(images, prompts)
        except SpotlightError:
            raise
        except (Exception, SystemExit) as error:
            raise raised(term.name, error) from error
        return checked(term.name, scores, len(images))

    def _reward(self, term: Term) -> Reward:
        if term.identity not in self._loaded:
            reward = registry.create(term.name, term.options)
            if isinstance(reward, UsesDevice):
                reward.use_device(self._device)
            self._loaded[term.identity] = reward
        return self._loaded[term.identity]


def scorer(config: RewardConfig, device: str) -> AbstractContextManager[Scorer]:
    """Reward processes as configured, or this process and its device if `processes` is 0."""
    if config.processes:
        return closing(RewardPool(config.processes, config.timeout_s))
    return closing(InProcessScorer(device))
