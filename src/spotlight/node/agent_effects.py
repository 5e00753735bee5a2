"""Effects of an `AgentCore`, which the agent's process and the simulator implement."""

from typing import Any, NamedTuple, Protocol

from spotlight.core import messages as m
from spotlight.core.types import WorkerId


class Scoring(NamedTuple):
    """A finished sample that waits for its verdict."""

    worker: WorkerId
    result: m.Result
    tensors: bytes
    """Bytes of a rollout that training reads."""


class AgentEffects(Protocol):
    """No call waits; what takes time ends in a call of the core, as each method says."""

    def report(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        """Send a message to the controller, of this worker or of the node itself."""

    def start_worker(self, slot: int, worker: WorkerId) -> None:
        """Start a process on a slot; `born` follows, and `ended` after its last message."""

    def kill_worker(self, worker: WorkerId) -> None:
        """Kill the process; `ended` follows."""

    def is_relaying(self, worker: WorkerId) -> bool:
        """Whether a message of this worker waits for the controller, so that later ones cannot be read."""

    def open(self, blob: bytes) -> tuple[Any, bytes]:
        """Split the blob of a Result into the picture and the tensors; raises RewardError."""

    def score(self, scoring: Scoring, granted: m.Granted, picture: Any) -> None:
        """Score a picture, and store what outlives it (`stored_sample`); `judged` follows."""

    def copy(self, load: m.Load) -> None:
        """Copy weights to the node; `copied` follows."""

    def delete(self, path: str) -> None:
        """Delete a copy of weights."""

    def spoil(self, path: str) -> None:
        """A copy of weights is damaged: it is not passed on, and the next `copy` of it replaces it."""

    def all_started(self) -> None:
        """Every worker of the node has sent its Hello."""

    def end(self, why: str) -> None:
        """End the node; the reason is empty after a drain."""


class NoEffects:
    """Effects of a node that is gone."""

    def report(self, worker: WorkerId | None, message: m.AnyMessage) -> None:
        pass

    def start_worker(self, slot: int, worker: WorkerId) -> None:
        pass

    def kill_worker(self, worker: WorkerId) -> None:
        pass

    def is_relaying(self, worker: WorkerId) -> bool:
        return False

    def open(self, blob: bytes) -> tuple[Any, bytes]:
        return None, blob

    def score(self, scoring: Scoring, granted: m.Granted, picture: Any) -> None:
        pass

    def copy(self, load: m.Load) -> None:
        pass

    def delete(self, path: str) -> None:
        pass

    def spoil(self, path: str) -> None:
        pass

    def all_started(self) -> None:
        pass

    def end(self, why: str) -> None:
        pass
