"""The states of a sample and the edges between them.

             lease            accept             commit_step
    QUEUED ---------> LEASED ---------> ACCEPTED -------------> TRAINED
      ^ ^             |                 |    ^                    |
      | `-- release --'                 |    `----- restore ------'
      `------------- reopen ------------'
    QUEUED, LEASED, ACCEPTED -- drop --> DROPPED

Only rollouts become TRAINED; audits, evaluations and previews end at ACCEPTED. DROPPED is final; a sample leaves
TRAINED only when the gang restores a checkpoint from before the step. Invariant: a sample moves along these edges only
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
"""States of a sample that is still to be made."""


class InvariantBroken(SpotlightError):
    """The controller's state is inconsistent: a defect of the code, not of the user's input. Nothing is changed."""
