"""A store in memory, and flights whose bytes lie in it."""

from collections.abc import Callable, Sequence

from spotlight.control.flights import Flights
from spotlight.core.blobs import BlobKind, BlobRef, content_digest
from spotlight.core.work import RequestId
from spotlight.node.unloading import BlobError


class MemoryStore:
    """Bytes by reference."""

    def __init__(self) -> None:
        self.bytes: dict[BlobRef, bytes] = {}

    def put(self, kind: BlobKind, name: str, data: bytes) -> BlobRef:
        ref = BlobRef(kind=kind, path=f"{kind.value}/{name}", digest="", size=len(data))
        self.bytes[ref] = data
        return ref

    def append(self, data: bytes) -> BlobRef:
        return self.put(BlobKind.FLIGHT, content_digest(data), data)

    def append_all(self, parts: Sequence[bytes]) -> list[BlobRef]:
        return [self.append(data) for data in parts]

    def get(self, ref: BlobRef) -> bytes:
        if ref not in self.bytes:
            raise BlobError(f"{ref.path} is not there")
        return self.bytes[ref]

    def release(self, refs: Sequence[BlobRef]) -> None:
        for ref in refs:
            del self.bytes[ref]


class StoredFlights:
    """`Flights` over a memory store, which takes and returns the bytes."""

    def __init__(self) -> None:
        self.store = MemoryStore()
        self._flights = Flights(self.store.release)
        self.fits = self._flights.fits
        self.forget = self._flights.forget

    def __len__(self) -> int:
        return len(self._flights)

    def keep(self, request: RequestId, step: int, data: bytes, since: int = 0) -> None:
        self._flights.keep(request, step, self.store.append(data), since)

    def at(self, request: RequestId, step: int) -> bytes | None:
        refs = self._flights.at(request, step)
        return b"".join(self.store.get(ref) for ref in refs) if refs else None

    def keep_only(self, is_wanted: Callable[[RequestId], bool]) -> None:
        self._flights.keep_only(is_wanted)
