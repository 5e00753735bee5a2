"""One checkpoint written by all ranks of a gang, without an exchange: each writes its part, rank 0 completes it.

    step_000060.GANG-3.part/00000.safetensors, 00001.safetensors, ...    the tensors of each rank
                           /00000.json, 00001.json, ...                  its entries of the index, written last
    rank 0: waits for all entries  ->  checkpoint.json  ->  fsync  ->  rename to step_000060

Invariant: a checkpoint under its final name holds the parts of all ranks, of the same snapshot. The scratch folder is
named after the gang and the number of its checkpoint, so a part of an earlier writer is never taken for one of this
checkpoint (tests/unit/test_joint_writing.py). If the gang breaks before all parts are written, the checkpoint is
abandoned; rank 0 of the next one removes what is left.
"""

import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from spotlight.compute.train.training_effects import CheckpointAbandoned
from spotlight.compute.weights import shards
from spotlight.compute.weights.index import IndexedTensor

PART_LIMIT_S = 3600.0
"""Longest wait of rank 0 for the parts of the other ranks."""
POLL_S = 0.05
SUFFIX = ".part"
_SCRATCH = re.compile(r"\.(?P<gang>[^.]+)-(?P<number>[0-9]+)\.part$")

Entries: TypeAlias = Mapping[str, IndexedTensor]


@dataclass(frozen=True)
class JointWriter:
    """This rank among the writers of a checkpoint."""

    rank: int
    ranks: int
    gang: str
    """Unique name of the gang."""
    number: int
    """Checkpoints that the gang began before."""
    is_open: Callable[[], bool]
    """Whether the gang still exists."""

    def scratch(self, folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.{self.gang}-{self.number}{SUFFIX}")

    def write_part(self, folder: Path, write: Callable[[Path], Entries]) -> None:
        """Write this rank's tensors with `write`, then its entries."""
        scratch = self.scratch(folder)
        try:
            if self.rank == 0:
                self._sweep(folder.parent)
            scratch.mkdir(parents=True, exist_ok=True)
            path = scratch / shards.file_of(self.rank)
            entries = write(path)
            _sync_file(path)
            _replace_file(_entries_of(scratch, self.rank), msgspec.json.encode(dict(entries)))
        except OSError as error:
            # Rank 0 removes the folder of an abandoned checkpoint, perhaps before this rank sees its gang break.
            if not self.is_open() or not scratch.is_dir():
                raise CheckpointAbandoned(str(error)) from error
            _report_failure(scratch, self.rank, error)
            raise

    def parts(self, folder: Path) -> Sequence[Entries]:
        """Wait for the entries of all ranks and read them; for rank 0."""
        scratch = self.scratch(folder)
        deadline = time.monotonic() + PART_LIMIT_S
        while missing := [r for r in range(self.ranks) if not _entries_of(scratch, r).is_file()]:
            for rank in missing:
                problem = _failure_of(scratch, rank)
                if problem.is_file():
                    raise OSError(f"rank {rank} could not write its part: {problem.read_text()}")
            if not self.is_open():
                shutil.rmtree(scratch, ignore_errors=True)
                raise CheckpointAbandoned(f"ranks {missing} had not written their parts when the gang broke")
            if time.monotonic() > deadline:
                raise OSError(f"ranks {missing} did not write their parts within {PART_LIMIT_S:g} s")
            time.sleep(POLL_S)
        paths = [_entries_of(scratch, rank) for rank in range(self.ranks)]
        read = [msgspec.json.decode(path.read_bytes(), type=dict[str, IndexedTensor]) for path in paths]
        for path in paths:
            path.unlink()
        return read

    def _sweep(self, parent: Path) -> None:
        """Remove what killed writers left; another rank may already write a later checkpoint of this gang."""
        for left in parent.glob(f"*{SUFFIX}"):
            match = _SCRATCH.search(left.name)
            is_ours = match is not None and match["gang"] == self.gang and int(match["number"]) >= self.number
            if not is_ours:
                shutil.rmtree(left, ignore_errors=True)


def _entries_of(scratch: Path, rank: int) -> Path:
    return scratch / f"{rank:05d}.json"


def _failure_of(scratch: Path, rank: int) -> Path:
    return scratch / f"{rank:05d}.failed"


def _report_failure(scratch: Path, rank: int, error: OSError) -> None:
    """Let rank 0 end its wait; if not even that can be written, it ends at its limit."""
    try:
        _replace_file(_failure_of(scratch, rank), str(error).encode())
    except OSError:
        return


def _replace_file(path: Path, content: bytes) -> None:
    """Write a file that is whole under its name."""
    scratch = path.with_suffix(f"{path.suffix}.tmp")
    scratch.write_bytes(content)
    _sync_file(scratch)
    os.replace(scratch, path)


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
