"""Where a worker's weights come from: a neighbour's device where there is one, else the node's store.

    Load --on a CPU--> store
    Load --on a GPU--> ASKED --Offered with handles--> neighbour's device
                         `--Offered without, a copy that fails, or patience ends--> store

Never from the trainer: the agent copied the set into the node's store before it said Load. Whatever the way, the digest
is read back from the model and told by Held (tests/unit/test_loading.py). Owned by the model's thread; waits nowhere.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass

from spotlight.compute.weights.peer import Offer, offer, take
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.crews import AskNeighbour, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.messages import AnyMessage, Held, Load
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

PATIENCE_S = 5.0
"""A neighbour answers between two steps; for 20 billion parameters the store takes a few seconds itself."""


@dataclass(frozen=True)
class _Asked:
    load: Load
    until: float


class Loading:
    """What was ordered and is not held yet."""

    def __init__(
        self,
        me: WorkerId,
        resident: Resident,
        store: NodeStore,
        say: Callable[[AnyMessage, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._me = me
        self._resident = resident
        self._store = store
        self._say = say
        self._clock = clock
        self._asked: dict[WeightsId, _Asked] = {}

    def load(self, load: Load) -> None:
        """Hold these from now on, and nothing that is not to be kept beside them."""
        for weights, _ in self._resident.held():
            if weights not in load.keep and weights != load.weights:
                self._resident.drop(weights)
        for weights in [weights for weights in self._asked if weights not in (*load.keep, load.weights)]:
            del self._asked[weights]
        held = dict(self._resident.held()).get(load.weights)
        if held is not None:
            self._tell(load.weights, held)
        elif self._resident.device.type == "cuda":
            self._asked[load.weights] = _Asked(load, self._clock() + PATIENCE_S)
            self._say(AskNeighbour(weights=load.weights, newcomer=self._me), b"")
        else:
            self._from_store(load)

    def asked(self, ask: AskNeighbour) -> None:
        """A neighbour of this worker wants its copy."""
        held = dict(self._resident.held()).get(ask.weights)
        handles = b""
        if held is not None:
            # Memory that cannot be shared is no reason to die: the newcomer has the store.
            with contextlib.suppress(WeightsError):
                handles = offer(ask.weights, held, self._resident.tensors(ask.weights)).to_bytes()
        self._say(Offered(weights=ask.weights, newcomer=ask.newcomer), handles)

    def offered(self, answer: Offered, handles: bytes) -> None:
        asked = self._asked.pop(answer.weights, None)
        if asked is None:
            return
        try:
            if not handles:
                raise WeightsError(f"no neighbour holds {answer.weights}; take it from the store.")
            offered = Offer.from_bytes(handles)
            copied = take(offered, self._resident.device)
            digest = self._resident.adopt(asked.load.weights, copied, asked.load.digest)
        except WeightsError:
            self._from_store(asked.load)
        else:
            self._tell(answer.weights, digest)

    def seconds_left(self) -> float | None:
        """Until somebody's patience ends; what is overdue is taken from the store now."""
        now = self._clock()
        for asked in [asked for asked in self._asked.values() if asked.until <= now]:
            del self._asked[asked.load.weights]
            self._from_store(asked.load)
        return min((asked.until - now for asked in self._asked.values()), default=None)

    def _from_store(self, load: Load) -> None:
        self._tell(load.weights, self._resident.load(self._store.open(load.weights)))

    def _tell(self, weights: WeightsId, digest: str) -> None:
        self._say(Held(weights=weights, digest=digest), b"")
