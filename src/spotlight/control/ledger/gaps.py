"""Missing parts of a run: dropped or unscored samples, untrained groups, evaluations without a score.

A fold of the journal that audit, status, report and the last line of `train` share. A gap breaks no invariant, but
`whole` is False if a group or an evaluation is missing (tests/unit/test_gaps.py).
"""

import math
from collections import Counter
from collections.abc import Mapping

import msgspec

from spotlight.core.events import Accepted, AnyEvent, Compared, Dropped, Evaluated, Previewed, Reopened
from spotlight.core.work import RequestId, Work

REASONS_SHOWN = 3
LONGEST_REASON = 300


class Gaps(msgspec.Struct, kw_only=True):
    """Running counts of the gaps."""

    dropped: dict[RequestId, str] = {}
    """Reason by dropped sample."""
    unscored: dict[RequestId, str] = {}
    """Reason by sample that was accepted without a score."""
    unscored_previews: int = 0
    skipped: dict[int, int] = {}
    """Number of untrained groups by iteration: fewer than two of their samples have a score."""
    groups: int = 0
    """Number of groups with advantages."""
    empty_evaluations: list[int] = []
    """Iterations whose evaluation has no score."""

    @property
    def whole(self) -> bool:
        return not self.skipped and not self.empty_evaluations

    @property
    def exist(self) -> bool:
        return not self.whole or bool(self.dropped or self.unscored or self.unscored_previews)

    def count(self, event: AnyEvent) -> None:
        match event:
            case Accepted(request=request):
                if math.isfinite(event.reward):
                    self.unscored.pop(request, None)
                else:
                    self.unscored[request] = event.problem
            case Dropped(request=request, reason=reason):
                self.unscored.pop(request, None)
                self.dropped[request] = reason
            case Reopened(request=request):
                self.unscored.pop(request, None)
            case Previewed(rewards=rewards):
                self.unscored_previews += sum(not math.isfinite(reward) for reward in rewards)
            case Compared():
                self.groups += len(event.kept)
                if skipped := sum(not any(group) for group in event.kept):
                    self.skipped[event.iteration] = skipped
            case Evaluated(iteration=iteration, scores=scores) if not scores:
                self.empty_evaluations.append(iteration)
            case _:
                pass

    def counts(self) -> list[str]:
        """Text of each kind of gap; empty if there is none."""
        parts = []
        if self.skipped:
            parts.append(f"{sum(self.skipped.values())} of {self.groups} groups not trained")
        if self.empty_evaluations:
            after = ", ".join(map(str, self.empty_evaluations))
            parts.append(f"no held-out score after {_plural(self.empty_evaluations, 'iteration')} {after}")
        if self.dropped:
            parts.append(f"{len(self.dropped)} samples dropped ({_by_work(self.dropped)})")
        if self.unscored:
            parts.append(f"{len(self.unscored)} samples without a score ({_by_work(self.unscored)})")
        if self.unscored_previews:
            parts.append(f"{self.unscored_previews} previews without a score")
        return parts

    def sentences(self) -> list[str]:
        """The counts and the most frequent reasons."""
        if not self.exist:
            return []
        reasons = Counter([*self.dropped.values(), *self.unscored.values()])
        lines = [f"Missing: {'; '.join(self.counts())}."]
        lines += [
            f"Reason of {count}: {_shortened(reason)}" for reason, count in reasons.most_common(REASONS_SHOWN) if reason
        ]
        return lines

    def verdict(self) -> str:
        """Last line of an audit without findings."""
        if not self.exist:
            return "Clean: nothing lost, nothing doubled, every invariant holds."
        what = "; ".join(self.counts())
        if self.whole:
            return f"Clean: nothing lost, nothing doubled, every invariant holds; but {what}."
        return f"INCOMPLETE: nothing was lost or doubled, but {what}."


def _by_work(requests: Mapping[RequestId, str]) -> str:
    counts = Counter(request.partition("/")[0] for request in requests)
    return ", ".join(f"{counts[work.value]} {work.value}" for work in Work if counts[work.value])


def _plural(things: list[int], name: str) -> str:
    return name if len(things) == 1 else f"{name}s"


def _shortened(reason: str) -> str:
    return reason if len(reason) <= LONGEST_REASON else f"{reason[:LONGEST_REASON]}..."
