"""The files of a node's weights: each published file is copied once, to the node's store or to disk.

A copy goes to the node's store, usually shared memory, or to a folder on disk if it would leave less than HEADROOM free
in the store: containers often have 64 MB of shared memory, and full shared memory breaks every process that needs some.
`Announcements` decides what is copied and deleted.

Invariant (tests/unit/test_weight_cache.py): a file under its final name has the size of the published one. The worker
checks its bytes by the digest. Free of torch: the agent only copies bytes.
"""

import asyncio
import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from spotlight.core.blobs import BlobSource
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.file_copy import copy_file
from spotlight.core.messages import Load
from spotlight.core.work import WeightsId

log = logging.getLogger(__name__)

HEADROOM = 16 << 20
"""Bytes that a copy leaves free in the store, for semaphores and shared memory of other processes."""
PAUSES_S = (0.5, 2.0)
"""Pauses before a failed copy is retried: a disk may be full only until an old checkpoint is deleted."""
FULL = (errno.ENOSPC, errno.EDQUOT)


class Files(Protocol):
    """The files of the run's folder, by their path in it; called by threads."""

    def size(self, path: str) -> int:
        """Raises OSError or EnvironmentProblem if the file is not there."""

    def copy(self, path: str, target: Path, sources: Sequence[BlobSource]) -> None:
        """Copy the whole file over `target`."""

    def drop(self, path: str) -> None:
        """The copy of this file is deleted."""


class NearFiles:
    """The run's folder is on this machine."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def size(self, path: str) -> int:
        return (self._home / path).stat().st_size

    def copy(self, path: str, target: Path, sources: Sequence[BlobSource]) -> None:
        copy_file(self._home / path, target)

    def drop(self, path: str) -> None:
        pass


class WeightCache:
    """The node's store folder, and its copies by set of weights."""

    def __init__(self, folder: Path, spill: Path, files: Files, warn: Callable[[str], None]) -> None:
        """`spill` is the folder on disk; `warn` is called once, when it is used for the first time."""
        self._files = files
        self._folder = folder
        self._spill = spill
        self._warn = warn
        self._is_warned = False
        folder.mkdir(parents=True, exist_ok=True)
        self._copies: dict[WeightsId, tuple[str, Path]] = {}
        """Digest and path of each set's newest copy, which may be deleted."""
        self._paths: dict[str, str] = {}
        """Path in the run's folder, by that of the copy."""

    async def copy(self, load: Load, is_wanted: Callable[[], bool]) -> Load | None:
        """Copy the file; return the announcement with a path on this node, or None if the set is no longer wanted."""
        if not load.path:
            return load
        for pause_s in PAUSES_S:
            if not is_wanted():
                return None
            try:
                return await self._copy_here(load)
            except (EnvironmentProblem, WeightsError) as error:
                log.warning("%s", error)
                await asyncio.sleep(pause_s)
        return await self._copy_here(load) if is_wanted() else None

    def delete(self, path: str) -> None:
        # The pages stay for workers that have the file mapped.
        Path(path).unlink(missing_ok=True)
        if (source := self._paths.pop(path, None)) is not None:
            self._files.drop(source)

    def spoil(self, path: str) -> None:
        """The copy is damaged: copy it again, and do not pass it on. It stays until then, for workers that read it."""
        self._copies = {weights: known for weights, known in self._copies.items() if str(known[1]) != path}
        if (source := self._paths.pop(path, None)) is not None:
            self._files.drop(source)

    async def _copy_here(self, load: Load) -> Load:
        digest, target = self._copies.get(load.weights, ("", self._folder))
        if digest != load.digest or not target.is_file():
            target = await asyncio.to_thread(self._copy, load)
            self._copies[load.weights] = (load.digest, target)
            self._paths[str(target)] = load.path
        return msgspec.structs.replace(load, path=str(target))

    def _copy(self, load: Load) -> Path:
        """Copy into the store if that leaves HEADROOM free, else to disk; return the path of the copy."""
        try:
            size = self._files.size(load.path)
            if size + HEADROOM <= shutil.disk_usage(self._folder).free:
                try:
                    return self._copy_into(load, size, self._folder)
                except OSError as error:
                    # Another node on this machine has filled the store meanwhile.
                    if error.errno not in FULL:
                        raise
            self._warn_of_spill(load.path, size)
            self._spill.mkdir(parents=True, exist_ok=True)
            return self._copy_into(load, size, self._spill)
        except FileNotFoundError as error:
            raise EnvironmentProblem(
                f"the published weights {load.path} are gone ({error}), but the run still needs them, so this node's "
                "workers cannot load them; check whether another process deletes files of the run folder."
            ) from error
        except (OSError, RuntimeError) as error:
            raise EnvironmentProblem(
                f"the weights {load.path} could not be copied to this node ({error}), so its workers cannot load them; "
                f"{_free(self._folder)} and {_free(self._spill)}; free some space, or set cluster.store."
            ) from error

    def _copy_into(self, load: Load, size: int, folder: Path) -> Path:
        target = folder / Path(load.path).name
        # A hidden name that the store's sweep of half-written files does not match.
        incoming = folder / f".{target.name}.incoming"
        try:
            self._files.copy(load.path, incoming, load.sources)
            if incoming.stat().st_size != size:
                raise WeightsError(
                    f"{load.path} has {size} bytes, but {incoming.stat().st_size} arrived, so it changed during the "
                    "copy; publish under a new name and rename."
                )
            os.replace(incoming, target)
        finally:
            incoming.unlink(missing_ok=True)
        return target

    def _warn_of_spill(self, path: str, size: int) -> None:
        if not self._is_warned:
            self._is_warned = True
            self._warn(
                f"{Path(path).name} ({_megabytes(size)}) would leave less than {_megabytes(HEADROOM)} "
                f"free in the store ({_free(self._folder)}), so weights go to {self._spill} on disk, which is slower; "
                "enlarge shared memory (docker run --shm-size), or set cluster.store."
            )


def _free(folder: Path) -> str:
    try:
        return f"{_megabytes(shutil.disk_usage(folder).free)} are free in {folder}"
    except OSError:
        return f"{folder} cannot be used"


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
