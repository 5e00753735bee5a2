"""The controller's view of the run's files: tensors of rollouts until a checkpoint covers them, flights, pictures of
evaluations, published weights. Agents and ranks write and read the bytes; the controller checks and deletes files.

Invariants (tests/unit/test_payloads.py): a file counts once its digest is in the journal, and by then it is written
whole; one that is missing or differs after a crash is reported, so that its sample can be made again. Flights stay over
a restart, and a file of flights is deleted when no part in it is needed. After the start of the run every operation on
the disk is done by a thread of its own.
"""

import contextlib
import glob
import queue
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from safetensors import SafetensorError, safe_open

from spotlight.compute.rollout.seal import is_intact, read_place, seal_of
from spotlight.compute.rollout.stored_flights import is_part_intact, stored_parts
from spotlight.control.recovery import StoredPart
from spotlight.core.blobs import BlobKind, BlobRef, writer_files
from spotlight.core.work import WeightsId


class Storage(Protocol):
    """Storage for data that is too large for the journal."""

    def is_whole(self, name: str, digest: str) -> bool: ...

    def release(self, refs: Sequence[BlobRef]) -> None:
        """Delete these bytes: nothing needs them any more."""

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        """The node or worker stores nothing more; `needed` counts the parts of flights that are, by file."""

    def flights(self) -> Sequence[StoredPart]:
        """All parts of flights, at the start; those that are not needed must be released."""

    def is_intact(self, ref: BlobRef) -> bool:
        """Whether the bytes of this part of a flight are there and undamaged."""

    def has_weights(self, weights: WeightsId, digest: str) -> bool:
        """Whether the set is there with these bytes; another gang may have left others under its name."""

    def weights_path(self, weights: WeightsId) -> str:
        """Path in the run's folder."""

    def keep_weights(self, wanted: Collection[WeightsId]) -> None:
        """Delete all published weights but these."""

    def covered(self, iteration: int) -> None:
        """Delete tensors and checkpoints that a durable checkpoint of all before this iteration replaces."""


class PayloadFolder:
    """`payloads/ITERATION/`, `images/ITERATION/` and `flights/` under the run's folder."""

    def __init__(self, folder: Path, keep_newest_checkpoints: Callable[[], None]) -> None:
        self._run_folder = folder
        self._keep_newest_checkpoints = keep_newest_checkpoints
        self._deletions: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._released: Counter[str] = Counter()
        """Parts of flights that are no longer needed, by file."""
        self._parts: dict[str, int] = {}
        """Number of parts, by file that takes no more."""
        threading.Thread(target=self._delete, name="deletions", daemon=True).start()

    def release(self, refs: Sequence[BlobRef]) -> None:
        """Delete the files of flights of which no part is needed."""
        for ref in refs:
            self._released[ref.path] += 1
            if ref.is_last:
                self._parts.setdefault(ref.path, ref.number)
            self._delete_unneeded(ref.path)

    def writer_gone(self, writer: str, needed: Callable[[], Mapping[str, int]]) -> None:
        """Delete its files of which no part is needed: parts that it died before reporting are never released."""
        begin = writer_files(writer)
        left = {path: count for path, count in needed().items() if path.startswith(begin)}
        for path, count in left.items():
            self._parts[path] = self._released[path] + count
        self._deletions.put(partial(self._delete_all_but, begin, left))

    def _delete_unneeded(self, path: str) -> None:
        if self._released[path] == self._parts.get(path):
            del self._released[path], self._parts[path]
            self._deletions.put(partial(_unlink, (f"{self._run_folder}/{path}",)))

    def _delete_all_but(self, begin: str, left: Collection[str]) -> None:
        """Delete the files whose paths begin so, except these."""
        for path in self._run_folder.glob(f"{glob.escape(begin)}*"):
            if str(path.relative_to(self._run_folder)) not in left:
                path.unlink(missing_ok=True)

    def flights(self) -> Sequence[StoredPart]:
        parts = stored_parts(self._run_folder)
        unreadable = {str(path) for path in (self._run_folder / BlobKind.FLIGHT.value).glob("*")}
        unreadable -= {f"{self._run_folder}/{part.ref.path}" for part in parts}
        self._deletions.put(partial(_unlink, sorted(unreadable)))
        return parts

    def is_intact(self, ref: BlobRef) -> bool:
        return is_part_intact(self._run_folder, ref)

    def is_whole(self, name: str, digest: str) -> bool:
        """Whether a rollout's tensors are there, undamaged, and the accepted ones."""
        try:
            data = read_place(self._run_folder / name)
        except OSError:
            return False
        return seal_of(data) == digest and is_intact(data)

    def has_weights(self, weights: WeightsId, digest: str) -> bool:
        try:
            with safe_open(self._run_folder / self.weights_path(weights), framework="np") as file:
                return (file.metadata() or {}).get("fingerprint") == digest
        except (OSError, SafetensorError):
            return False

    def weights_path(self, weights: WeightsId) -> str:
        return f"weights/{weights}.safetensors"

    def keep_weights(self, wanted: Collection[WeightsId]) -> None:
        names = {str(weights) for weights in wanted}
        gone = []
        for path in (self._run_folder / "weights").glob("*.safetensors"):
            if path.stem not in names:
                # Renamed at once, because the same name may be published again before the file is deleted.
                gone.append(str(path.rename(path.with_suffix(".gone"))))
        self._deletions.put(lambda: _unlink(gone))

    def covered(self, iteration: int) -> None:
        self._deletions.put(lambda: self._clear(iteration))

    def finished(self) -> None:
        """Delete what only an unfinished run needs; its nodes are gone."""
        shutil.rmtree(self._run_folder / BlobKind.FLIGHT.value, ignore_errors=True)

    def settle(self) -> None:
        """Wait until everything that was ordered so far is deleted."""
        done = threading.Event()
        self._deletions.put(done.set)
        done.wait()

    def _clear(self, iteration: int) -> None:
        self._keep_newest_checkpoints()
        for folder in sorted((self._run_folder / BlobKind.PAYLOAD.value).glob("[0-9]*")):
            if int(folder.name) < iteration:
                shutil.rmtree(folder, ignore_errors=True)

    def _delete(self) -> None:
        while True:
            # A file that cannot be deleted costs space and nothing else.
            with contextlib.suppress(OSError):
                self._deletions.get()()


def _unlink(paths: Collection[str]) -> None:
    for path in paths:
        Path(path).unlink(missing_ok=True)
