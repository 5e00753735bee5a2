"""The invariants of a run, and the findings of an audit."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

import msgspec

from spotlight.control.ledger.history import History
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.core.work import RequestId


class Invariant(StrEnum):
    """Properties that hold in every run."""

    SEQUENCE = "sequence"
    """Records are numbered without a gap, and run time never goes back."""
    CONSERVATION = "conservation"
    """Every event's sample was issued, once; at the end no sample is left to be made."""
    FENCE = "fence"
    """A sample has at most one live lease; a result belongs to the live attempt."""
    EDGES = "edges"
    """States move along the edges of `states.py`; dropped is final."""
    TRAINED_ONCE = "trained_once"
    """A sample is in at most one surviving step; steps are in order; at the end every rollout is trained or dropped."""
    WHOLE_GROUPS = "whole_groups"
    """A group trains complete (or explicitly reduced) and with one policy version."""
    POLICY = "policy"
    """The policy lag is within its bound; only rollouts enter the loss."""
    FRONTIER = "frontier"
    """Every position of the prompt order is issued once, and the frontier equals the trained positions."""
    SAME_LATENT = "same_latent"
    """A sample made again from the same weights has the same tensors."""
    NOTICE = "notice"
    """No lease goes to a worker that is lost or past its deadline; the leases of a lost worker are released."""
    TIME = "time"
    """A worker's busy time does not exceed its elapsed time."""
    LIMITS = "limits"
    """Attempts and redone steps are within their limits."""
    PROGRESS = "progress"
    """The time between optimizer steps is within its limit."""
    WEIGHTS = "weights"
    """A sample is made with the published bytes of its version, and a version is published once."""


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """Limits that follow from a run's settings, which its journal does not hold."""

    max_lag: int = 1
    """Largest policy lag of a trained sample in versions: 1 with one-step asynchrony, else 0."""
    max_stale_share: float = 1.0
    """Largest share of an iteration's groups that is drawn with the previous version."""
    max_attempts: int = 200
    """Largest number of attempts at one sample. Each loss, recall and restart costs one; more is a livelock."""
    commit_every: int | None = None
    """Steps between commits: the most that a loss may cost a flight. None: not checked."""
    max_step_gap_s: float | None = None
    """Largest gap between two optimizer steps in run seconds. None: not checked."""
    bit_exact: bool = True
    """True if the run was deterministic: a sample made again has the same bits."""

    @classmethod
    def promised(cls, pipeline: PipelineConfig, commit_every: int, is_deterministic: bool) -> "Bounds":
        """Return the bounds of a run with these settings."""
        return cls(
            max_lag=int(pipeline.asynchrony),
            max_stale_share=pipeline.stale_share,
            commit_every=commit_every,
            bit_exact=is_deterministic,
        )


@dataclass(frozen=True)
class Finding:
    """One broken invariant, with the record that breaks it."""

    invariant: Invariant
    seq: int
    problem: str
    requests: tuple[RequestId, ...] = ()

    def __str__(self) -> str:
        return f"record {self.seq}, {self.invariant.value}: {self.problem}."


@dataclass(frozen=True)
class CheckContext:
    """Input of a check besides the event: the history before it, its time, and the bounds."""

    history: History
    at: float
    bounds: Bounds


Problem: TypeAlias = tuple[str, tuple[RequestId, ...]]
"""The problem, as part of a sentence, and its samples."""


def some(requests: Sequence[RequestId]) -> str:
    """Return the first three requests and the number of the others, for a sentence."""
    shown = ", ".join(requests[:3])
    return shown if len(requests) <= 3 else f"{shown} and {len(requests) - 3} more"
