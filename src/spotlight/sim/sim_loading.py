"""The weights of a simulated worker: digests for tensors, behind the effects of `LoadingCore`.

As on devices: an offer names memory of its holder. It cannot be read any more when the holder's process is gone, and
has other content when the holder has dropped the set.
"""

import logging
from contextlib import suppress
from typing import Protocol

import msgspec

from spotlight.compute.memory.memory_plan import SETS_HELD
from spotlight.compute.profiling.pace import Pace
from spotlight.core.errors import WeightsError
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.loading_core import KeepOwn, LoadEffect, OfferHeld, ReadHeld, TakeOffered, TakeOwn, TakeStored
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.surroundings import Surroundings

# Storms refuse many copies, and their traces show why.
logging.getLogger("spotlight.worker").addHandler(logging.NullHandler())


class SimSets(dict[WeightsId, str]):
    """The published sets that a worker holds, with the digests of what it applied."""

    def __init__(self) -> None:
        super().__init__()
        self.own: dict[WeightsId, str] = {}
        """Copies of sets that this worker published."""

    def hold(self, weights: WeightsId, digest: str) -> str:
        """Apply a set; raises WeightsError if there is no room, as `Resident` does."""
        if weights not in self and len(self) >= SETS_HELD:
            raise WeightsError(f"{weights} cannot be loaded beside {', '.join(map(str, self))}; drop one of them.")
        self[weights] = digest
        return digest

    def held(self) -> list[tuple[WeightsId, str]]:
        return sorted(self.items())

    def drop(self, weights: WeightsId) -> None:
        del self[weights]

    def drop_own(self, weights: WeightsId) -> None:
        self.own.pop(weights, None)


class SimOffer(msgspec.Struct, frozen=True):
    """Stands for the handles of a set on its holder's device."""

    holder: WorkerId
    weights: WeightsId


class Loader(Protocol):
    """The worker that carries out an effect."""

    id: WorkerId
    around: Surroundings
    pace: Pace

    def trained(self, weights: WeightsId) -> str:
        """Digest of the trained weights that it publishes as this set."""

    async def take_time(self, seconds: float) -> None: ...

    def crash_if_due(self, point: CrashPoint) -> None:
        """Raise Crashed if the fault policy crashes the worker at this point."""


async def perform(effect: LoadEffect, sets: SimSets, worker: Loader) -> str | bytes | bool | None:
    """Spend the effect's time and apply it; returns its completion."""
    around, pace = worker.around, worker.pace
    match effect:
        case KeepOwn(weights=weights):
            sets.own[weights] = worker.trained(weights)
            return True
        case TakeOwn(weights=weights):
            await worker.take_time(pace.adopt())
            with suppress(WeightsError):
                return sets.hold(weights, around.read_back(sets.own.pop(weights), worker.id))
            return None
        case TakeOffered(load=load, handles=handles):
            offer = msgspec.msgpack.decode(handles, type=SimOffer)
            await worker.take_time(pace.copy())
            worker.crash_if_due(CrashPoint.COPYING)
            copied = around.memory_of(offer.holder, offer.weights)
            with suppress(WeightsError):
                return None if copied is None else sets.hold(load.weights, around.read_back(copied, worker.id))
            return None
        case TakeStored(load=load):
            await worker.take_time(pace.load_s)
            return sets.hold(load.weights, around.read_back(around.stored(load), worker.id))
        case ReadHeld(weights=weights):
            return sets[weights]
        case OfferHeld(weights=weights):
            worker.crash_if_due(CrashPoint.OFFERING)
            assert weights in sets, f"{worker.id} offers {weights}, which it does not hold"
            return msgspec.msgpack.encode(SimOffer(worker.id, weights))
