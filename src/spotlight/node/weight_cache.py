"""A node's copies of published weights: each file is copied once, and late workers receive the newest announcements.

A copy goes to the node's store, usually shared memory, or to a folder on disk where it would not leave HEADROOM free in
the store: containers often have 64 MB of shared memory, and a full one breaks every process that needs some.

Invariants (tests/unit/test_weight_cache.py): announcements are taken in the order in which they came, also where one
has to be tried again, because each says what is to be kept; one that a later announcement no longer keeps is passed
over. A file under its final name has the size of the published one; what its
bytes say is checked by the worker, which can compute the digest. A file that is no longer wanted is deleted only when
every worker that was given its path has gone past it, so that none finds it missing. Free of torch: the agent only
moves bytes.

`Written` remembers which worker wrote which weights: it applies its own copy before the file is in the node's store.

    PublishedWeights --> written --Load comes, nothing older is on its way--> Adopt, to the worker that wrote them
                            `--a newer version is written, or its writer is gone--> forgotten

Invariant: `Adopt` overtakes no announcement of other sets. Each says what is to be kept, so a later one would make the
worker drop what it has just applied and reported (tests/unit/test_written.py).
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
    """As the node's agent hears of it."""

    def __init__(self) -> None:
        self._by: dict[WeightsId, WorkerId] = {}
        """Of the newest version, until they are taken up."""
        self._on_their_way: list[Load] = []
        """Announcements that no worker was told of yet."""

    def wrote(self, worker: WorkerId, published: PublishedWeights) -> None:
        version = published.weights.version
        self._by = {weights: writer for weights, writer in self._by.items() if weights.version == version}
        self._by[published.weights] = worker

    def gone(self, worker: WorkerId) -> None:
        self._by = {weights: writer for weights, writer in self._by.items() if writer != worker}

    def announced(self, load: Load) -> tuple[WorkerId, Adopt] | None:
        """Whom to tell what at once; the others hear of it when the file is here, which `arrived` says."""
        overtakes = any(_kept(other) != _kept(load) for other in self._on_their_way)
        self._on_their_way.append(load)
        writer = None if overtakes else self._by.pop(load.weights, None)
        return None if writer is None else (writer, Adopt(weights=load.weights, digest=load.digest, keep=load.keep))

    def arrived(self, load: Load) -> None:
        """Its file is here, or will not come."""
        self._on_their_way.remove(load)


def _kept(load: Load) -> set[WeightsId]:
    return {load.weights, *load.keep}


log = logging.getLogger(__name__)


@dataclass
class _Retired:
    """A file that goes once these workers hold what was announced `after` it, or are gone."""

    path: Path
    after: int
    waits_for: set[WorkerId]


HEADROOM = 16 << 20
"""Bytes that a copy leaves free in the store, for semaphores and shared memory of other processes."""
PAUSES_S = (0.5, 2.0)
"""Before a copy that failed is tried again: a disk may be full only until an old checkpoint is deleted."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class WeightCache:
    """The node's store folder, as its agent keeps it. One copy at a time, in the order of the announcements."""

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
        """When each set was first announced, counted in announcements."""
        self._announcements = 0
        self._wanted: set[WeightsId] = set()
        """What the newest announcement keeps, taken or not."""
        self._retired: list[_Retired] = []
        self._one_at_a_time = asyncio.Lock()

    def current(self) -> tuple[Load, ...]:
        """What a worker that starts now has to know."""
        return tuple(self._loads.values())

    async def take(self, load: Load, workers: Callable[[], Collection[WorkerId]]) -> Load | None:
        """The same announcement with a path on this node, or None if a later one no longer keeps the set.

        `workers` are those that live here when it is ready.
        """
        self._wanted = {load.weights, *load.keep}
        async with self._one_at_a_time:
            local = load if not load.path else await self._bring_patiently(load)
            if local is None:
                return None
            self._announcements += 1
            # The first time counts: a worker's answer to it says nothing about what was announced since.
            self._announced.setdefault(load.weights, self._announcements)
            self._loads.pop(load.weights, None)
            self._loads[load.weights] = local
            for weights in sorted(set(self._loads) - {load.weights, *load.keep}):
                self._retire(weights, set(workers()))
            self._sweep()
            return local

    def caught_up(self, worker: WorkerId, weights: WeightsId) -> None:
        """The worker holds this set, so it has gone past all that was announced before."""
        announced = self._announced.get(weights, 0)
        for retired in self._retired:
            if retired.after <= announced:
                retired.waits_for.discard(worker)
        self._sweep()

    def gone(self, worker: WorkerId) -> None:
        for retired in self._retired:
            retired.waits_for.discard(worker)
        self._sweep()

    async def _bring_patiently(self, load: Load) -> Load | None:
        """None: the set is no longer wanted."""
        for pause_s in PAUSES_S:
            if load.weights not in self._wanted:
                return None
            try:
                return await self._bring(load)
            except (EnvironmentProblem, WeightsError) as error:
                log.warning("%s", error)
                await asyncio.sleep(pause_s)
        return await self._bring(load) if load.weights in self._wanted else None

    async def _bring(self, load: Load) -> Load:
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
        """Into the store where that leaves headroom, else to disk; the path of the copy."""
        try:
            if source.stat().st_size + HEADROOM <= shutil.disk_usage(self._folder).free:
                try:
                    return _copied(source, self._folder)
                except OSError as error:
                    # Another node of this machine filled the store meanwhile.
                    if error.errno not in FULL:
                        raise
            self._spilling(source)
            self._spill.mkdir(parents=True, exist_ok=True)
            return _copied(source, self._spill)
        except FileNotFoundError as error:
            raise EnvironmentProblem(
                f"the published weights {source} are gone ({error}), though the run still wants them, so that no "
                "worker of this node gets them; look whether something deletes files of the run folder."
            ) from error
        except (OSError, RuntimeError) as error:
            raise EnvironmentProblem(
                f"the weights {source} could not be copied to this node ({error}), so that no worker of it gets them; "
                f"{_free(self._folder)} and {_free(self._spill)}; free some, or set cluster.store."
            ) from error

    def _spilling(self, source: Path) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._warn(
                f"{source.name} ({_shown(source.stat().st_size)}) would leave less than {_shown(HEADROOM)} free in the "
                f"store ({_free(self._folder)}), so weights go to {self._spill} on disk, which is slower; enlarge "
                "shared memory (docker run --shm-size), or set cluster.store."
            )

    def _retire(self, weights: WeightsId, workers: set[WorkerId]) -> None:
        """Only what was copied here: on the publisher's node the store is the publisher's."""
        del self._loads[weights]
        del self._announced[weights]
        path = self._copied.pop(weights, None)
        if path is not None:
            self._retired.append(_Retired(path, self._announcements, workers))

    def _sweep(self) -> None:
        for retired in self._retired:
            if not retired.waits_for:
                # Workers that have it mapped keep it.
                retired.path.unlink(missing_ok=True)
        self._retired = [retired for retired in self._retired if retired.waits_for]


def _copied(source: Path, folder: Path) -> Path:
    target = folder / source.name
    # A hidden name of its own kind: a store's sweep of half-written files leaves it alone.
    incoming = folder / f".{source.name}.incoming"
    try:
        size = source.stat().st_size
        copy_file(source, incoming)
        if incoming.stat().st_size != size:
            raise WeightsError(
                f"{source} has {size} bytes, but {incoming.stat().st_size} arrived, so that it changed while it was "
                "copied; publish under a new name and rename."
            )
        os.replace(incoming, target)
    finally:
        incoming.unlink(missing_ok=True)
    return target


def _free(folder: Path) -> str:
    try:
        return f"{_shown(shutil.disk_usage(folder).free)} are free in {folder}"
    except OSError:
        return f"{folder} cannot be used"


def _shown(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
