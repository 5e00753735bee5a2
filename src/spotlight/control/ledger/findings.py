"""Names of the invariants of a run, and what a breach of one looks like."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from spotlight.control.ledger.history import History
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.core.work import RequestId


class Invariant(StrEnum):
    """What must hold in every run."""

    SEQUENCE = "sequence"
    """Records are numbered without a gap, and run time never goes back."""
    CONSERVATION = "conservation"
    """What happens to a sample happens to one that was issued, once; at the end none is left to be made."""
    FENCE = "fence"
    """At most one live lease; a result is of the live attempt."""
    EDGES = "edges"
    """States move along the drawn edges; dropped stays dropped."""
    TRAINED_ONCE = "trained_once"
    """Each sample in at most one surviving step; steps in order; at the end each rollout trained or dropped."""
    WHOLE_GROUPS = "whole_groups"
    """A group trains complete (or explicitly reduced) and with one policy version."""
    POLICY = "policy"
    """Policy lag within its bound; nothing but rollouts enters the loss."""
    FRONTIER = "frontier"
    """Every place of the prompt order is issued once, and the frontier is what was trained."""
    SAME_LATENT = "same_latent"
    """A sample made again from the same weights has the same tensors."""
    NOTICE = "notice"
    """No lease to a worker that is gone or past its deadline; what a lost worker held is taken back."""
    TIME = "time"
    """A worker's time adds up."""
    LIMITS = "limits"
    """Attempts and redone steps within their limits."""
    PROGRESS = "progress"
    """Steps keep coming."""
    WEIGHTS = "weights"
    """A sample is made with the published bytes of its version, and a version is published once."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a run promised; its journal does not say, so the caller does."""

    max_lag: int = 1
    """Versions that a trained sample may be behind the newest one: 1 with one-step asynchrony, else 0."""
    max_stale_share: float = 1.0
    """Of an iteration's groups: those that may be drawn with the version before its own."""
    max_attempts: int = 200
    """At one sample. Each loss, recall and restart costs one; more than this is a livelock."""
    commit_every: int | None = None
    """Steps between commits: a loss may cost no more of a flight. None does not check."""
    max_step_gap_s: float | None = None
    """Run seconds between two optimizer steps. None does not check."""
    bit_exact: bool = True
    """Whether the run was in deterministic mode, where a sample made again has the same bits."""

    @classmethod
    def promised(cls, pipeline: PipelineConfig, commit_every: int, is_deterministic: bool) -> "Bounds":
        """By a run of these settings."""
        return cls(
            max_lag=int(pipeline.asynchrony),
            max_stale_share=pipeline.stale_share,
            commit_every=commit_every,
            bit_exact=is_deterministic,
        )


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, with the record that shows it."""

    invariant: Invariant
    seq: int
    problem: str
    requests: tuple[RequestId, ...] = ()

    def __str__(self) -> str:
        return f"record {self.seq}, {self.invariant.value}: {self.problem}."


@dataclass(frozen=True)
class CheckContext:
    """What a check sees beside the event: all that was before it, its time, and the promises."""

    history: History
    at: float
    bounds: Bounds


Problem: TypeAlias = tuple[str, tuple[RequestId, ...]]
"""What is wrong, as the middle of a sentence, and with which samples."""


def some(requests: Sequence[RequestId]) -> str:
    """A few of many, for a sentence."""
    shown = ", ".join(requests[:3])
    return shown if len(requests) <= 3 else f"{shown} and {len(requests) - 3} more"
