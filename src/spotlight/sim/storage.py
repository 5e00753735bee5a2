"""The run's disk, in memory: tensors, published weights and checkpoints; outlives the controller and every worker."""

from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence

from spotlight.control.recovery import StoredPart
from spotlight.core.blobs import BlobKind, BlobRef, content_digest
from spotlight.core.errors import EnvironmentProblem, Stopped
from spotlight.core.types import NodeId
from spotlight.core.work import WeightsId
from spotlight.node.unloading import BlobError
from spotlight.sim.fakes import header_of, part_seal, read_flight

CHECKPOINTS_KEPT = 2
MISSING = "is not in the store"
RELEASED_KEPT = 64


def never(name: str) -> bool:
    return False


class SimStorage:
    """`controller.payloads.Storage`, and the files of the training worker."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self._digests: dict[str, str] = {}
        """Digests of the present contents, as far as computed."""
        self.replaced: list[str] = []
        """Files whose bytes were replaced by others, which no writer may do."""
        self.weights: dict[str, str] = {}
        """Digest of the bytes at each path."""
        self.checkpoints: dict[str, bytes] = {}
        self._flights = 0
        """Number of parts of flights stored."""
        self._released: deque[tuple[str, bytes]] = deque(maxlen=RELEASED_KEPT)
        """Parts of flights that were released, and still lie in files with others: a restart finds them."""
        self._writers = 0
        """Number of checkpoints begun."""
        self.is_full: Callable[[str], bool] = never
        """Whether a write of this file fails."""

    # -- the controller's side -----------------------------------------------------------------------------------------

    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        """Store bytes, as the agents do; raises Stopped if the disk is full."""
        path = f"{kind}/{name}"
        if self.is_full(path):
            raise Stopped(f"{path} cannot be written, because the disk is full; free it and resume.")
        if self.files.get(path, data) != data:
            self.replaced.append(path)
        self.files[path] = data
        digest = self._digests[path] = content_digest(data)
        return BlobRef(kind=kind, path=path, digest=digest, size=len(data))

    def append(self, data: bytes, writer: NodeId) -> BlobRef:
        """Store a part of a flight of this node, under a name of its own."""
        self._flights += 1
        path = f"{BlobKind.FLIGHT.value}/{writer}-{self._flights}"
        if self.is_full(path):
            raise Stopped(f"{path} cannot be written, because the disk is full; free it and resume.")
        self.files[path] = data
        return BlobRef(kind=BlobKind.FLIGHT, path=path, digest="", size=len(data))

    def get(self, ref: BlobRef) -> bytes:
        data = self.files.get(ref.path)
        if data is None:
            raise BlobError(f"{ref.path} {MISSING}")
        return data

    def release(self, refs: Sequence[BlobRef]) -> None:
        for ref in refs:
            data = self.files.pop(ref.path, None)
            if data is not None:
                self._released.append((ref.path, data))

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        """Every part is a file of its own, so nothing waits for its neighbours; those left are found at a restart."""

    def flights(self) -> list[StoredPart]:
        found = []
        self.files.update(self._released)
        self._released.clear()
        for path in self.flight_files():
            data = self.files[path]
            part = header_of(data)
            if part is not None:
                base = str(part.base) if part.since else ""
                ref = BlobRef(kind=BlobKind.FLIGHT, path=path, digest=str(part_seal(data)), size=len(data))
                writer = NodeId(path.partition("/")[2].rpartition("-")[0])
                facts = part.request, part.attempt, part.step, part.since, base, part.digest
                found.append(StoredPart(*facts, ref, writer))
            else:
                del self.files[path]
        return found

    def is_intact(self, ref: BlobRef) -> bool:
        try:
            return bool(read_flight(self.files[ref.path]))
        except ValueError:
            return False

    def digest(self, name: str) -> str:
        """Digest of the file's content."""
        known = self._digests.get(name)
        if known is None:
            known = self._digests[name] = content_digest(self.files[name])
        return known

    def is_whole(self, name: str, digest: str) -> bool:
        return name in self.files and self.digest(name) == digest

    def weights_at(self, path: str) -> str:
        """Digest of the published set at this path."""
        if path not in self.weights:
            raise EnvironmentProblem(f"{path} is not there")
        return self.weights[path]

    def has_weights(self, weights: WeightsId, digest: str) -> bool:
        return self.weights.get(self.weights_path(weights)) == digest

    def weights_path(self, weights: WeightsId) -> str:
        return f"weights/{weights}"

    def keep_weights(self, wanted: Collection[WeightsId]) -> None:
        names = {self.weights_path(weights) for weights in wanted}
        self.weights = {path: digest for path, digest in self.weights.items() if path in names}

    def covered(self, iteration: int) -> None:
        whole = sorted(path for path in self.checkpoints if not path.endswith(".part"))
        for old in whole[:-CHECKPOINTS_KEPT]:
            del self.checkpoints[old]
        for name in [name for name in self.files if name.startswith("payloads/")]:
            if int(name.split("/")[1]) < iteration:
                self.lose(name)

    # -- the training worker's side -----------------------------------------------------------------------------------

    def begin_checkpoint(self, path: str) -> str:
        """Write under a partial name, after deleting partial files of other writers; return that name."""
        for left in [known for known in self.checkpoints if known.endswith(".part")]:
            del self.checkpoints[left]
        self._writers += 1
        partial = f"{path}.{self._writers}.part"
        self.checkpoints[partial] = b"half"
        return partial

    def end_checkpoint(self, path: str, partial: str, content: bytes) -> None:
        """Replace the partial file by the whole one."""
        if self.checkpoints.pop(partial, None) is None:
            # The writer was silent, and another gang has begun a checkpoint since.
            raise Stopped(f"the checkpoint {path} cannot be written, because its partial file is gone; resume.")
        if self.is_full(path):
            raise Stopped(f"the checkpoint {path} cannot be written, because the disk is full; free it and resume.")
        self.checkpoints[path] = content

    # -- disk faults ---------------------------------------------------------------------------------------------------

    def payloads(self) -> list[str]:
        return sorted(name for name in self.files if name.startswith("payloads/"))

    def flight_files(self) -> list[str]:
        return [name for name in self.files if name.startswith("flights/")]

    def lose(self, name: str) -> None:
        del self.files[name]
        self._digests.pop(name, None)

    def damage(self, name: str) -> None:
        self.files[name] = b"damaged " + self.files[name]
        self._digests.pop(name, None)

    def damage_flight(self, name: str) -> None:
        """Alter the tensors of a part; its header stays readable."""
        data = self.files[name]
        self.files[name] = data[:-1] + bytes([data[-1] ^ 1])

    def cut_flight(self, name: str) -> None:
        """Leave a part half-written."""
        data = self.files[name]
        self.files[name] = data[: len(data) // 2]


class NodeFlights:
    """The store of flights, as one node uses it."""

    def __init__(self, storage: SimStorage, node: NodeId) -> None:
        self._storage = storage
        self._node = node
        self.get = storage.get

    def append(self, data: bytes) -> BlobRef:
        return self._storage.append(data, self._node)

    def append_all(self, parts: Sequence[bytes]) -> list[BlobRef]:
        return [self.append(data) for data in parts]
