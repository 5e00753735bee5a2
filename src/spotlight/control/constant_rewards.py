"""Alarm for rewards that give every sample of an iteration the same score, from which nothing can be learned."""

from collections.abc import Iterable, Mapping

import numpy as np

from spotlight.control.advantage import scored

Groups = Iterable[Iterable[float]]


def constant_rewards(rewards: Mapping[str, Groups]) -> dict[str, float]:
    """The rewards with one score for all samples, two or more, and that score; groups of equal scores may differ."""
    found = {name: scored(np.array([score for group in groups for score in group])) for name, groups in rewards.items()}
    return {name: float(scores[0]) for name, scores in found.items() if scores.size > 1 and np.ptp(scores) == 0}


def alarm(iteration: int, constant: Mapping[str, float]) -> str:
    """The sentence for people."""
    which = ", ".join(f"{name} is {score:g}" for name, score in constant.items())
    return (
        f"constant over all samples of iteration {iteration}: {which}, so nothing can be learned from it; check that "
        "the reward loads the right weights, that the prompts have what it looks for, and that the pictures are not "
        "blank."
    )
