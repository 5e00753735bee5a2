"""The states of a sample and the edges between them.

             lease            accept             commit_step
    QUEUED ---------> LEASED ---------> ACCEPTED -------------> TRAINED
      ^ ^             |                 |    ^                    |
      | `-- release --'                 |    `----- restore ------'
      `------------- reopen ------------'
    QUEUED, LEASED, ACCEPTED -- drop --> DROPPED

Only rollouts are ever TRAINED; audits, evaluations and previews end at ACCEPTED. DROPPED is the end; TRAINED is left
only when the gang falls back to a checkpoint from before the step. Invariant: a sample moves along these edges alone
(tests/property/test_ledger_property.py).
"""

from collections.abc import Mapping
from enum import StrEnum

from spotlight.core.errors import SpotlightError


class SampleState(StrEnum):
    QUEUED = "queued"
    LEASED = "leased"
    ACCEPTED = "accepted"
    TRAINED = "trained"
    DROPPED = "dropped"


EDGES: Mapping[SampleState, frozenset[SampleState]] = {
    SampleState.QUEUED: frozenset({SampleState.LEASED, SampleState.DROPPED}),
    SampleState.LEASED: frozenset({SampleState.QUEUED, SampleState.ACCEPTED, SampleState.DROPPED}),
    SampleState.ACCEPTED: frozenset({SampleState.TRAINED, SampleState.QUEUED, SampleState.DROPPED}),
    SampleState.TRAINED: frozenset({SampleState.ACCEPTED}),
    SampleState.DROPPED: frozenset(),
}

OUTSTANDING = frozenset({SampleState.QUEUED, SampleState.LEASED})
"""Somebody must still make the sample."""


class InvariantBroken(SpotlightError):
    """The controller contradicts itself: a defect of the code, never of the user's input. The run stops before harm."""
