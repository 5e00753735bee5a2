"""Who owes which sample, what became of it, and what has been trained: the one owner of these facts."""

from spotlight.control.ledger.ledger import Emit, Ledger, ignore
from spotlight.control.ledger.states import InvariantBroken, SampleState

__all__ = ["Emit", "InvariantBroken", "Ledger", "SampleState", "ignore"]
