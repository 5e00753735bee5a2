"""Weight copy between neighbours: weights come from the worker itself, a neighbour's device, or the node's store.

    Adopt --on a GPU, worker wrote this set--> its own copy
    Load --on a CPU--> store
    Load --on a GPU, worker wrote this set--> its own copy --another digest--.
    Load --on a GPU--> REQUESTED <--------------------------------------------'
                         |--Offered with handles--> neighbour's device
                         `--Offered without handles, a failed copy, or a timeout--> store

Weights never come directly from another machine's trainer: the agent copies the set into the node's store before it
sends Load (`weight_cache.py`). A worker that publishes a set keeps a copy, because the trained weights change, and
applies it on Adopt while the agent still copies; the Load that follows finds it held. On a CPU the pages of the store
are the weights, so no copy is made. In every case the digest is read back from the model, compared with the announced
one and reported by Held; the model's results are bit-identical (tests/unit/test_neighbours_copy.py,
tests/unit/test_own_weights.py). `Loading` is owned by the model's thread and never waits.

A copy from device to device is offered as handles, copied and released:

    holder: offer(tensors) --bytes--> newcomer: take(offer) -> copies ; the holder keeps the tensors until then

No pickle: an offer is msgpack of CUDA's inter-process memory handles. It names the weights and their digest; the
newcomer checks both, as after any load. It works between processes on one device and between devices that can map each
other's memory; elsewhere `take` raises and the store is used. A newcomer that dies during the copy may pin the holder's
memory until the holder exits, so only whole published sets are offered, of which a worker holds few
(tests/gpu/test_weights_on_device.py; measured by benchmarks/newcomer/).
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
"""Allowed dtypes of weights from another process."""


class Handle(msgspec.Struct, frozen=True, array_like=True):
    """CUDA's arguments to map one tensor's memory into another process."""

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
    """One set of weights on its holder's device."""

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
                f"{len(data)} bytes do not decode as an offer of weights ({error}); load them from the node's store."
            ) from error


def offer(weights: WeightsId, digest: str, tensors: Mapping[str, Tensor]) -> Offer:
    """Return handles of tensors on a CUDA device; the caller keeps the tensors until they are copied."""
    handles = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise WeightsError(
                f"{name} of {weights} is on {tensor.device}, whose memory no other process can map; offer weights on "
                "a CUDA device."
            )
        try:
            shared = tensor.untyped_storage()._share_cuda_()
        except RuntimeError as error:
            raise WeightsError(
                f"{name} of {weights} cannot be shared with another process ({error}): the device or its allocator "
                "does not allow it; load the set from the node's store."
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
    """Copy an offer to this process's device; the holder's memory is released before this returns."""
    taken = {}
    try:
        # Opening a handle before the process has a CUDA context is a segmentation fault, not an error.
        torch.empty(0, device=device)
        for handle in offered.handles:
            storage = torch.UntypedStorage._new_shared_cuda(
                handle.device, handle.memory, handle.size, handle.memory_offset, handle.counter,
                handle.counter_offset, handle.event, handle.needs_event,
            )  # fmt: skip
            mapped = torch.empty(0, dtype=DTYPES[handle.dtype], device=f"cuda:{handle.device}")
            mapped.set_(storage, handle.offset, handle.shape, handle.stride)
            taken[handle.name] = mapped.to(device, copy=True)
            del mapped, storage
        torch.cuda.synchronize(device)
    except (RuntimeError, KeyError) as error:
        raise WeightsError(
            f"{offered.weights} could not be copied from the neighbour that offered it ({error}): the neighbour is "
            "gone, or its device cannot be mapped from here; load the set from the node's store."
        ) from error
    return taken


log = logging.getLogger("spotlight.worker")

PATIENCE_S = 5.0
"""Wait for a neighbour's offer: it replies between two steps, and the store takes a few seconds for 20 billion
parameters."""


@dataclass(frozen=True)
class _Request:
    load: Load
    until: float


class Loading:
    """Loads weights as ordered, and offers held weights to neighbours."""

    def __init__(
        self,
        me: WorkerId,
        resident: Resident,
        store: NodeStore,
        send: Callable[[AnyMessage, bytes], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._me = me
        self._resident = resident
        self._store = store
        self._send = send
        self._clock = clock
        self._requests: dict[WeightsId, _Request] = {}
        self._own: dict[WeightsId, Mapping[str, Tensor]] = {}
        """Copies of the sets of the newest version that this worker wrote, until it applies them."""

    def wrote(self, weights: WeightsId, tensors: Mapping[str, Tensor]) -> None:
        """Keep a copy of a set that this worker has published, for the Adopt or Load that follows."""
        self._own = {own: kept for own, kept in self._own.items() if own.version == weights.version}
        if self._on_gpu:
            try:
                self._own[weights] = own_copy(tensors)
            except torch.OutOfMemoryError:
                log.warning("no device memory to keep a copy of %s; it will be fetched", weights)

    @property
    def _on_gpu(self) -> bool:
        return self._resident.device.type == "cuda"

    def load(self, load: Load) -> None:
        """Load these weights, and drop every set that the order does not keep."""
        self._keep_only((load.weights, *load.keep))
        held = dict(self._resident.held()).get(load.weights)
        if held is not None:
            self._report_held(load.weights, held)
        elif not self._on_gpu:
            self._from_store(load)
        elif not self._from_own_copy(load.weights, load.digest):
            self._requests[load.weights] = _Request(load, self._clock() + PATIENCE_S)
            self._send(AskNeighbour(weights=load.weights, newcomer=self._me), b"")

    def adopt(self, order: Adopt) -> None:
        """Apply this worker's own copy, if it has one; otherwise the Load that follows brings the set."""
        if order.weights in self._own and not self._resident.holds(order.weights):
            self._keep_only((order.weights, *order.keep))
            self._from_own_copy(order.weights, order.digest)

    def requested(self, request: AskNeighbour) -> None:
        """Reply to a neighbour that requests these weights."""
        held = dict(self._resident.held()).get(request.weights)
        handles = b""
        if held is not None:
            # If the memory cannot be shared, the newcomer loads from the store.
            with contextlib.suppress(WeightsError):
                handles = offer(request.weights, held, self._resident.tensors(request.weights)).to_bytes()
        self._send(Offered(weights=request.weights, newcomer=request.newcomer), handles)

    def offered(self, answer: Offered, handles: bytes) -> None:
        request = self._requests.pop(answer.weights, None)
        if request is None:
            return
        try:
            if not handles:
                raise WeightsError(f"no neighbour holds {answer.weights}; load it from the store.")
            offered = Offer.from_bytes(handles)
            copied = take(offered, self._resident.device)
            digest = self._resident.adopt(request.load.weights, copied, request.load.digest)
        except WeightsError:
            self._from_store(request.load)
        else:
            self._report_held(answer.weights, digest)

    def seconds_left(self) -> float | None:
        """Seconds until the next request times out; sets whose request has timed out are loaded from the store now."""
        now = self._clock()
        for request in [request for request in self._requests.values() if request.until <= now]:
            del self._requests[request.load.weights]
            self._from_store(request.load)
        return min((request.until - now for request in self._requests.values()), default=None)

    def _keep_only(self, wanted: Collection[WeightsId]) -> None:
        for weights, _ in self._resident.held():
            if weights not in wanted:
                self._resident.drop(weights)
        self._requests = {weights: request for weights, request in self._requests.items() if weights in wanted}

    def _from_own_copy(self, weights: WeightsId, digest: str) -> bool:
        """Apply this worker's own copy; True if it has one with this digest."""
        own = self._own.pop(weights, None)
        if own is None:
            return False
        try:
            found = self._resident.adopt(weights, own, digest)
        except WeightsError as error:
            # Another gang may have published the set again; the announced digest decides.
            log.warning("%s will be fetched: the copy that this worker kept cannot be used: %s", weights, error)
            return False
        self._report_held(weights, found)
        return True

    def _from_store(self, load: Load) -> None:
        """Load from the announced folder, which is on disk where shared memory is too small."""
        store = NodeStore(Path(load.path).parent) if load.path else self._store
        self._report_held(load.weights, self._resident.load(store.open(load.weights)))

    def _report_held(self, weights: WeightsId, digest: str) -> None:
        self._send(Held(weights=weights, digest=digest), b"")
