"""The only owner of sample states, leases, results and the training frontier."""

from spotlight.control.ledger.ledger import Emit, Ledger, ignore
from spotlight.control.ledger.states import InvariantBroken, SampleState

__all__ = ["Emit", "InvariantBroken", "Ledger", "SampleState", "ignore"]
