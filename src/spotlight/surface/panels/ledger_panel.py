"""Ledger health: where every rollout is, what was refused or done again, what is missing, and the audit's verdict."""

from collections.abc import Mapping
from typing import Protocol

import msgspec

from spotlight.surface.formats import count
from spotlight.surface.projections import RunView

WORDS = {
    "queued": "wait for a slot",
    "leased": "are being made",
    "accepted": "wait for training",
    "trained": "are trained, each exactly once",
    "dropped": "were dropped",
}


class AuditVerdict(Protocol):
    """Outcome of an audit of the journal."""

    @property
    def clean(self) -> bool: ...

    @property
    def whole(self) -> bool: ...

    def sentences(self) -> list[str]: ...


class GapStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Missing groups, evaluations and samples; see `control/ledger/gaps.py`."""

    whole: bool
    """Whether no group and no evaluation is missing."""
    groups_skipped: int
    evaluations_empty: list[int]
    samples_dropped: int
    samples_unscored: int
    previews_unscored: int
    sentences: list[str]


class SampleStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Every rollout is in exactly one of the counts; waste is a share of denoising steps."""

    rollouts: dict[str, int]
    refused: dict[str, int]
    released: dict[str, int]
    steps_done: int
    steps_redone: dict[str, int]
    waste: float

    @property
    def issued(self) -> int:
        return sum(self.rollouts.values())

    @property
    def redone(self) -> int:
        return sum(self.steps_redone.values())


class LedgerPanel(msgspec.Struct, frozen=True, kw_only=True):
    health: str
    """Where the rollouts are, in a sentence."""
    samples: SampleStatus
    gaps: GapStatus
    is_audited: bool
    is_clean: bool
    is_whole: bool
    verdict: list[str]
    """Sentences of the audit."""


def ledger_panel(view: RunView, verdict: AuditVerdict | None = None) -> LedgerPanel:
    samples = sample_status(view)
    return LedgerPanel(
        health=_health(samples.rollouts),
        samples=samples,
        gaps=gap_status(view),
        is_audited=verdict is not None,
        is_clean=verdict is not None and verdict.clean,
        is_whole=verdict is not None and verdict.whole,
        verdict=verdict.sentences() if verdict is not None else [],
    )


def sample_status(view: RunView) -> SampleStatus:
    return SampleStatus(
        rollouts=view.samples.rollouts(),
        refused=view.samples.refused,
        released=view.samples.released,
        steps_done=view.samples.steps_done,
        steps_redone=view.samples.redone_by,
        waste=view.waste,
    )


def gap_status(view: RunView) -> GapStatus:
    gaps = view.gaps
    return GapStatus(
        whole=gaps.whole,
        groups_skipped=sum(gaps.skipped.values()),
        evaluations_empty=gaps.empty_evaluations,
        samples_dropped=len(gaps.dropped),
        samples_unscored=len(gaps.unscored),
        previews_unscored=gaps.unscored_previews,
        sentences=gaps.sentences(),
    )


def _health(rollouts: Mapping[str, int]) -> str:
    issued = sum(rollouts.values())
    if not issued:
        return "No rollout has been issued yet."
    parts = [f"{number:,} {WORDS[state]}" for state, number in reversed(list(rollouts.items())) if number]
    return f"Of {count(issued, 'rollout')} {', '.join(parts)}."
