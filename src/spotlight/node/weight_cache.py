"""A node's copies of published weights: each file is copied once, and late workers receive the newest announcements.

A copy goes to the node's store, usually shared memory, or to a folder on disk if it would leave less than HEADROOM free
in the store: containers often have 64 MB of shared memory, and full shared memory breaks every process that needs some.

Invariants (tests/unit/test_weight_cache.py):
- Announcements are applied in the order of their arrival, retries included, because each lists the sets to keep. One
  whose set a later announcement no longer keeps is skipped.
- A file under its final name has the size of the published one. The worker checks its bytes by the digest.
- A file is deleted only when every worker that received its path has loaded a later set, so no worker finds it missing.

Free of torch: the agent only copies bytes.

`Written` records which worker wrote which weights, so that it applies its own copy before the file is in the store:

    PublishedWeights --> written --Load arrives, no other set is pending--> Adopt, to the worker that wrote them
                            `--a newer version is written, or its writer is gone--> forgotten

Invariant (tests/unit/test_weight_cache.py): `Adopt` overtakes no announcement of other sets. Each lists the sets to
keep, so a late one would make the worker drop a set that it has just applied and reported.
"""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight.core.crew_messages import Adopt
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.file_copy import copy_file
from spotlight.core.messages import Load, PublishedWeights
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId


class Written:
    """The writers of published weights, and the announcements whose file is not here yet."""

    def __init__(self) -> None:
        self._by: dict[WeightsId, WorkerId] = {}
        """Writers of the newest version's sets, until those are announced."""
        self._pending: list[Load] = []
        """Announcements that are not relayed to the workers yet."""

    def wrote(self, worker: WorkerId, published: PublishedWeights) -> None:
        version = published.weights.version
        self._by = {weights: writer for weights, writer in self._by.items() if weights.version == version}
        self._by[published.weights] = worker

    def gone(self, worker: WorkerId) -> None:
        self._by = {weights: writer for weights, writer in self._by.items() if writer != worker}

    def announced(self, load: Load) -> tuple[WorkerId, Adopt] | None:
        """The writer and its Adopt, to send at once; None if there is none. All workers get the Load after the copy."""
        overtakes = any(_kept(other) != _kept(load) for other in self._pending)
        self._pending.append(load)
        writer = None if overtakes else self._by.pop(load.weights, None)
        return None if writer is None else (writer, Adopt(weights=load.weights, digest=load.digest, keep=load.keep))

    def arrived(self, load: Load) -> None:
        """Remove an announcement whose file is copied, or cannot be."""
        self._pending.remove(load)


def _kept(load: Load) -> set[WeightsId]:
    return {load.weights, *load.keep}


log = logging.getLogger(__name__)


@dataclass
class _Retired:
    """A file to delete once each of these workers holds a set announced `after` it, or is gone."""

    path: Path
    after: int
    waits_for: set[WorkerId]


HEADROOM = 16 << 20
"""Bytes that a copy leaves free in the store, for semaphores and shared memory of other processes."""
PAUSES_S = (0.5, 2.0)
"""Pauses before a failed copy is retried: a disk may be full only until an old checkpoint is deleted."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class WeightCache:
    """The node's store folder; copies one file at a time, in the order of the announcements."""

    def __init__(self, folder: Path, spill: Path, warn: Callable[[str], None]) -> None:
        """`spill` is the folder on disk; `warn` is called once, when it is used for the first time."""
        self._folder = folder
        self._spill = spill
        self._warn = warn
        self._is_warned = False
        folder.mkdir(parents=True, exist_ok=True)
        self._loads: dict[WeightsId, Load] = {}
        self._copied: dict[WeightsId, Path] = {}
        self._announced: dict[WeightsId, int] = {}
        """Number of each set's first announcement."""
        self._announcements = 0
        self._wanted: set[WeightsId] = set()
        """Sets that the newest announcement keeps, copied or not."""
        self._retired: list[_Retired] = []
        self._copying = asyncio.Lock()

    def current(self) -> tuple[Load, ...]:
        """Announcements for a worker that starts now."""
        return tuple(self._loads.values())

    async def take(self, load: Load, workers: Callable[[], Collection[WorkerId]]) -> Load | None:
        """Copy the file; return the announcement with a path on this node, or None if a later one drops the set.

        `workers` returns the node's workers at the end of the copy.
        """
        self._wanted = {load.weights, *load.keep}
        async with self._copying:
            local = load if not load.path else await self._copy_with_retries(load)
            if local is None:
                return None
            self._announcements += 1
            # The first announcement counts: a worker's reply to it does not cover later ones.
            self._announced.setdefault(load.weights, self._announcements)
            self._loads.pop(load.weights, None)
            self._loads[load.weights] = local
            for weights in sorted(set(self._loads) - {load.weights, *load.keep}):
                self._retire(weights, set(workers()))
            self._sweep()
            return local

    def caught_up(self, worker: WorkerId, weights: WeightsId) -> None:
        """Record that the worker holds this set, and so needs no file that was retired before it."""
        announced = self._announced.get(weights, 0)
        for retired in self._retired:
            if retired.after <= announced:
                retired.waits_for.discard(worker)
        self._sweep()

    def gone(self, worker: WorkerId) -> None:
        for retired in self._retired:
            retired.waits_for.discard(worker)
        self._sweep()

    async def _copy_with_retries(self, load: Load) -> Load | None:
        """Copy with retries; None if the set is no longer wanted."""
        for pause_s in PAUSES_S:
            if load.weights not in self._wanted:
                return None
            try:
                return await self._copy_here(load)
            except (EnvironmentProblem, WeightsError) as error:
                log.warning("%s", error)
                await asyncio.sleep(pause_s)
        return await self._copy_here(load) if load.weights in self._wanted else None

    async def _copy_here(self, load: Load) -> Load:
        source = Path(load.path)
        if source.parent == self._folder:
            return load
        known, target = self._loads.get(load.weights), self._copied.get(load.weights)
        if known is None or known.digest != load.digest or target is None or not target.exists():
            target = await asyncio.to_thread(self._copy, source)
            self._copied[load.weights] = target
            self._retired = [retired for retired in self._retired if retired.path != target]
        return msgspec.structs.replace(load, path=str(target))

    def _copy(self, source: Path) -> Path:
        """Copy into the store if that leaves HEADROOM free, else to disk; return the path of the copy."""
        try:
            if source.stat().st_size + HEADROOM <= shutil.disk_usage(self._folder).free:
                try:
                    return _copy_into(source, self._folder)
                except OSError as error:
                    # Another node on this machine has filled the store meanwhile.
                    if error.errno not in FULL:
                        raise
            self._warn_of_spill(source)
            self._spill.mkdir(parents=True, exist_ok=True)
            return _copy_into(source, self._spill)
        except FileNotFoundError as error:
            raise EnvironmentProblem(
                f"the published weights {source} are gone ({error}), but the run still needs them, so this node's "
                "workers cannot load them; check whether another process deletes files of the run folder."
            ) from error
        except (OSError, RuntimeError) as error:
            raise EnvironmentProblem(
                f"the weights {source} could not be copied to this node ({error}), so its workers cannot load them; "
                f"{_free(self._folder)} and {_free(self._spill)}; free some space, or set cluster.store."
            ) from error

    def _warn_of_spill(self, source: Path) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._warn(
                f"{source.name} ({_megabytes(source.stat().st_size)}) would leave less than {_megabytes(HEADROOM)} "
                f"free in the store ({_free(self._folder)}), so weights go to {self._spill} on disk, which is slower; "
                "enlarge shared memory (docker run --shm-size), or set cluster.store."
            )

    def _retire(self, weights: WeightsId, workers: set[WorkerId]) -> None:
        """Retire a set; its file only if it was copied here: on the publisher's node the publisher owns the store."""
        del self._loads[weights]
        del self._announced[weights]
        path = self._copied.pop(weights, None)
        if path is not None:
            self._retired.append(_Retired(path, self._announcements, workers))

    def _sweep(self) -> None:
        for retired in self._retired:
            if not retired.waits_for:
                # The pages stay for workers that have the file mapped.
                retired.path.unlink(missing_ok=True)
        self._retired = [retired for retired in self._retired if retired.waits_for]


def _copy_into(source: Path, folder: Path) -> Path:
    target = folder / source.name
    # A hidden name that the store's sweep of half-written files does not match.
    incoming = folder / f".{source.name}.incoming"
    try:
        size = source.stat().st_size
        copy_file(source, incoming)
        if incoming.stat().st_size != size:
            raise WeightsError(
                f"{source} has {size} bytes, but {incoming.stat().st_size} arrived, so it changed during the copy; "
                "publish under a new name and rename."
            )
        os.replace(incoming, target)
    finally:
        incoming.unlink(missing_ok=True)
    return target


def _free(folder: Path) -> str:
    try:
        return f"{_megabytes(shutil.disk_usage(folder).free)} are free in {folder}"
    except OSError:
        return f"{folder} cannot be used"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
