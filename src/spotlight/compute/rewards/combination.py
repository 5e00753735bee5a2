"""Several rewards of one picture as one score: the weighted sum, and every raw score among the components.

Invariants (tests/unit/test_reward_terms.py): the sum is exactly rounded, so the order of terms changes no bit; a
picture without one of its scores has no reward, and keeps the others as components.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Scores
from spotlight.core.messages import Score


@dataclass(frozen=True)
class Verdict:
    """A score, or NaN with the reason."""

    score: Score
    problem: str = ""


def score_of(scores: Scores, index: int, scorer: str = "") -> Score:
    """The score of one picture of a batch."""
    components = {name: float(values[index]) for name, values in scores.components.items()}
    return Score(reward=float(scores.total[index]), components=components, scorer=scorer)


def combined(terms: Sequence[Term], verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict on a picture from one verdict per term; that of a run's only reward is returned as it is."""
    if not terms[0].key:
        return verdicts[0]
    components: dict[str, float] = {}
    for term, verdict in zip(terms, verdicts, strict=True):
        if math.isfinite(verdict.score.reward):
            components[term.key] = verdict.score.reward
    for term, verdict in zip(terms, verdicts, strict=True):
        for name, value in verdict.score.components.items():
            # A part keeps its own name, such as `exact`, unless another term has that name.
            components[name if name not in components else f"{term.key}.{name}"] = value
    return Verdict(
        Score(
            reward=math.fsum(term.weight * verdict.score.reward for term, verdict in zip(terms, verdicts, strict=True)),
            components=components,
            scorer=" + ".join(verdict.score.scorer for verdict in verdicts),
        ),
        "; ".join(verdict.problem for verdict in verdicts if verdict.problem),
    )
