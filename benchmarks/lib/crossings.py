"""Where a noisy curve first reaches a score: by means of two consecutive evaluations, so that no lucky one decides."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Spent = NDArray[np.float64]


def first_reaching_mean(scores: Sequence[float], spent: Sequence[Spent], target: float) -> Spent | None:
    """What was spent when the mean of two consecutive scores first reached the target; None if it never does.

    A mean stands halfway between its evaluations. Between two means the curve is a straight line from the best mean so
    far, so that a later dip does not undo it.
    """
    best: tuple[float, Spent] | None = None
    for (one, first), (two, second) in pairwise(zip(scores, spent, strict=True)):
        score, at = (one + two) / 2, (first + second) / 2
        if score >= target:
            if best is None:
                return at
            return best[1] + (target - best[0]) / (score - best[0]) * (at - best[1])
        best = (score if best is None else max(score, best[0]), at)
    return None
