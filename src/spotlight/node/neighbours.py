"""Weight copy between neighbours: weights come from the worker itself, a neighbour's device, or the node's store.

    Adopt --on a GPU, which wrote this set--> its own copy
    Load --on a CPU--> store
    Load --on a GPU, which wrote this set--> its own copy --another digest--.
    Load --on a GPU--> ASKED <------------------------------------------------'
                         |--Offered with handles--> neighbour's device
                         `--Offered without, a copy that fails, or patience ends--> store

Weights never come from another machine's trainer here: the agent has copied the set into the node's store before it
sends Load (`weight_cache.py`). A worker that writes a set keeps a copy as it was then, because the trained weights
change, and applies it on Adopt while the agent still copies; the Load that follows finds it held. On a CPU the pages of
the store are the weights, so no copy is made. Whatever the way, the digest is read back from the model, compared with
the announced one and reported by Held; the model computes the same to the last bit (tests/unit/test_loading.py,
tests/unit/test_own_weights.py). `Loading` is owned by the model's thread and never waits.

A copy from device to device is offered as handles, taken, and let go:

    holder: offer(tensors) --bytes--> newcomer: take(offer) -> copies ; the offer must stay alive until then

No pickle: an offer is msgpack of the handles that CUDA gives out for memory of another process. It names the weights
and their digest; the newcomer checks both, as after any load. It works between processes on one device and between
devices that can map each other's memory; elsewhere `take` raises and the store is used. A newcomer that dies in the
middle may pin the holder's memory until the holder exits, so only whole published sets are offered, of which a worker
holds few (tests/gpu/test_weights_on_device.py; measured by benchmarks/newcomer/).
"""

import contextlib
import logging
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from spotlight.compute.weights.resident import Resident, own_copy
from spotlight.compute.weights.store import NodeStore
from spotlight.core.crew_messages import Adopt, AskNeighbour, Offered
from spotlight.core.errors import WeightsError
from spotlight.core.messages import AnyMessage, Held, Load
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

DTYPES = {str(dtype): dtype for dtype in (torch.float32, torch.bfloat16, torch.float16)}
"""Of weights; nothing else is taken from another process."""


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """What CUDA needs to map one tensor's memory into another process."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    device: int
    memory: bytes
    size: int
    memory_offset: int
    counter: bytes
    counter_offset: int
    event: bytes
    needs_event: bool


class Offer(msgspec.Struct, frozen=True):
    """One set of weights, as its holder has it on its device."""

    weights: WeightsId
    digest: str
    handles: tuple[Handle, ...]

    def to_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @classmethod
    def from_bytes(cls, data: bytes) -> "Offer":
        try:
            return msgspec.msgpack.decode(data, type=cls)
        except msgspec.MsgspecError as error:
            raise WeightsError(
                f"{len(data)} bytes are no offer of weights ({error}); take them from the node's store."
            ) from error


def offer(weights: WeightsId, digest: str, tensors: Mapping[str, Tensor]) -> Offer:
    """Handles of tensors on a CUDA device; the caller keeps the tensors until they were taken."""
    handles = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise WeightsError(
                f"{name} of {weights} is on {tensor.device}, whose memory no other process can map; offer weights that "
                "are on a CUDA device."
            )
        try:
            shared = tensor.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise WeightsError(
                f"{name} of {weights} cannot be shared with another process ({error}), because the device or its "
                "allocator does not allow it; take the set from the node's store."
            ) from error
        device, memory, size, memory_offset, counter, counter_offset, event, needs_event = shared
        handles.append(
            Handle(
                name, str(tensor.dtype), tuple(tensor.shape), tensor.stride(),
                int(tensor.storage_offset()), device, memory, size, memory_offset, counter, counter_offset, event,
                needs_event,
            )
        )  # fmt: skip
    return Offer(weights, digest, tuple(handles))


def take(offered: Offer, device: torch.device) -> dict[str, Tensor]:
    """Copies on this process's device; the holder's memory is let go before this returns."""
    taken = {}
    try:
        # Handles that are opened before the process has woken its device are a segmentation fault, not an error.
        torch.empty(0, device=device)
        for handle in offered.handles:
            storage = torch.UntypedStorage._new_shared_cuda(
                handle.device, handle.memory, handle.size, handle.memory_offset, handle.counter,
                handle.counter_offset, handle.event, handle.needs_event,
            )  # fmt: skip
            theirs = torch.empty(0, dtype=DTYPES[handle.dtype], device=f"cuda:{handle.device}")
            theirs.set_(storage, handle.offset, handle.shape, handle.stride)
            taken[handle.name] = theirs.to(device, copy=True)
            del theirs, storage
        torch.cuda.synchronize(device)
    except (RuntimeError, KeyError) as error:
        raise WeightsError(
            f"{offered.weights} could not be copied from the neighbour that offered it ({error}), so that it is gone "
            "or its device cannot be mapped from here; take it from the node's store."
        ) from error
    return taken


log = logging.getLogger("spotlight.worker")

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
        self._own: dict[WeightsId, Mapping[str, Tensor]] = {}
        """Sets of the newest version that this worker wrote, until it takes them up."""

    def wrote(self, weights: WeightsId, tensors: Mapping[str, Tensor]) -> None:
        """This worker has published these, and will be told to load them like everybody else."""
        self._own = {own: kept for own, kept in self._own.items() if own.version == weights.version}
        if self._copies_sets:
            try:
                self._own[weights] = own_copy(tensors)
            except torch.OutOfMemoryError:
                log.warning("there is no room to keep %s as it was published; it will be fetched", weights)

    @property
    def _copies_sets(self) -> bool:
        return self._resident.device.type == "cuda"

    def load(self, load: Load) -> None:
        """Hold these from now on, and nothing that is not to be kept beside them."""
        self._keep_only((load.weights, *load.keep))
        held = dict(self._resident.held()).get(load.weights)
        if held is not None:
            self._tell(load.weights, held)
        elif not self._copies_sets:
            self._from_store(load)
        elif not self._from_itself(load.weights, load.digest):
            self._asked[load.weights] = _Asked(load, self._clock() + PATIENCE_S)
            self._say(AskNeighbour(weights=load.weights, newcomer=self._me), b"")

    def adopt(self, order: Adopt) -> None:
        """Hold these if it has its own copy; what is not to be had here, Load will bring."""
        if order.weights in self._own and not self._resident.holds(order.weights):
            self._keep_only((order.weights, *order.keep))
            self._from_itself(order.weights, order.digest)

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

    def _keep_only(self, wanted: Collection[WeightsId]) -> None:
        for weights, _ in self._resident.held():
            if weights not in wanted:
                self._resident.drop(weights)
        self._asked = {weights: asked for weights, asked in self._asked.items() if weights in wanted}

    def _from_itself(self, weights: WeightsId, digest: str) -> bool:
        """Whether it wrote these very weights and holds them now."""
        own = self._own.pop(weights, None)
        if own is None:
            return False
        try:
            found = self._resident.adopt(weights, own, digest)
        except WeightsError as error:
            # Published anew by another gang, for one: what was announced is what counts.
            log.warning("%s will be fetched, for the copy that this worker kept cannot be used: %s", weights, error)
            return False
        self._tell(weights, found)
        return True

    def _from_store(self, load: Load) -> None:
        """From the folder that the announcement names: weights that shared memory has no room for are on disk."""
        store = NodeStore(Path(load.path).parent) if load.path else self._store
        self._tell(load.weights, self._resident.load(store.open(load.weights)))

    def _tell(self, weights: WeightsId, digest: str) -> None:
        self._say(Held(weights=weights, digest=digest), b"")
