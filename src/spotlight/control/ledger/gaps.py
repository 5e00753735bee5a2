"""What a run did not get: samples given up or without a score, groups not trained, evaluations without a score.

A fold of the journal that audit, status, report and the last line of `train` share. None of it breaks an invariant,
and none of it is success: `whole` is False where a group or an evaluation is missing (tests/unit/test_gaps.py).
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
    """Counted as events pass by."""

    dropped: dict[RequestId, str] = {}
    """Samples that were given up, with the reason."""
    unscored: dict[RequestId, str] = {}
    """Samples that were accepted without a score, with the reason."""
    unscored_previews: int = 0
    skipped: dict[int, int] = {}
    """Groups that were not trained, because fewer than two of their samples have a score, by iteration."""
    groups: int = 0
    """Groups that were compared."""
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
        """Each kind of gap in a few words; empty where there is none."""
        said = []
        if self.skipped:
            said.append(f"{sum(self.skipped.values())} of {self.groups} groups not trained")
        if self.empty_evaluations:
            after = ", ".join(map(str, self.empty_evaluations))
            said.append(f"no held-out score after {_plural(self.empty_evaluations, 'iteration')} {after}")
        if self.dropped:
            said.append(f"{len(self.dropped)} samples given up ({_by_work(self.dropped)})")
        if self.unscored:
            said.append(f"{len(self.unscored)} samples without a score ({_by_work(self.unscored)})")
        if self.unscored_previews:
            said.append(f"{self.unscored_previews} previews without a score")
        return said

    def sentences(self) -> list[str]:
        """The counts, and the most frequent reasons."""
        if not self.exist:
            return []
        reasons = Counter([*self.dropped.values(), *self.unscored.values()])
        said = [f"Missing: {'; '.join(self.counts())}."]
        said += [
            f"Reason of {count}: {_shortened(reason)}" for reason, count in reasons.most_common(REASONS_SHOWN) if reason
        ]
        return said

    def verdict(self) -> str:
        """The last line of an audit without findings."""
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
