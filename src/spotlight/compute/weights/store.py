"""A node's published weights: one safetensors file per set in shared memory, written once and mapped by every worker.

Invariant: a file under its final name is whole and holds the set in its name (tests/unit/test_weight_store.py). A set
is identified by its fingerprint. Inside a run the process that computes with the set verifies it: `Resident.load` reads
the fingerprint back from the module. Outside of a run `read_set` verifies it at once. Writers hold a lock of the
folder, write under a scratch name and rename. The kernel frees the lock of a killed writer, and `keep` deletes its
scratch file.

Mappings are private: a stray write would change one process's copy of a page, never the file. A deleted set stays
readable for processes that have it mapped.
"""

import fcntl
import os
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from spotlight.compute.weights import download
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.header import set_facts, unreadable
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId

SUFFIX = ".safetensors"
SCRATCH = ".part"


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """One set in a node's store."""

    weights: WeightsId
    fingerprint: str
    path: Path
    size: int
    """Bytes of the file."""


@dataclass(frozen=True, kw_only=True)
class MappedWeights:
    """Content of one set; the tensors are pages of the file, so they must not be written to."""

    weights: WeightsId
    family: str
    fingerprint: str
    base_digest: str
    """Digest of the base weights, which supply every tensor that the set lacks."""
    tensors: Mapping[str, Tensor]


class NodeStore:
    """The sets of one node, in `folder`; any number of processes may have it open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, weights: WeightsId, family: str, state: Mapping[str, Tensor], base_digest: str) -> StoredWeights:
        """Write a set; publishing it again changes nothing, and other weights under its id are refused."""
        # Computed on the weights' device, so that the reader detects damage between device and file.
        value = fingerprint(state)
        metadata = {
            "format": "pt",
            "family": family,
            "fingerprint": value,
            "base_digest": base_digest,
            "version": str(weights.version),
            "policy": weights.policy.value,
        }
        path = self._path(weights)
        with self._locked():
            present = self._fingerprint_here(weights)
            if present is not None and present != value:
                raise WeightsError(
                    f"{weights} is in the store {self.folder} with fingerprint {present} and cannot be stored with "
                    f"{value}, because published weights never change; publish them as another version."
                )
            if present is None:
                self._write(path, state, metadata)
            return StoredWeights(weights=weights, fingerprint=value, path=path, size=path.stat().st_size)

    def open(self, weights: WeightsId) -> MappedWeights:
        """Map a set; `Resident.load` verifies its bytes."""
        with self._locked():
            if not self._path(weights).is_file():
                here = ", ".join(str(held) for held in self.holds()) or "none"
                raise WeightsError(
                    f"the weights {weights} are not in the store {self.folder}, which holds {here}; publish or fetch "
                    "them first."
                )
            return self._mapped(weights)

    def holds(self) -> tuple[WeightsId, ...]:
        """The sets in the store, oldest version first."""
        names = [path.stem.rpartition("-") for path in self.folder.glob(f"*{SUFFIX}")]
        return tuple(sorted(WeightsId(Version(int(version)), Policy(policy)) for policy, _, version in names))

    def keep(self, ids: Collection[WeightsId]) -> tuple[WeightsId, ...]:
        """Delete every other set and the scratch files of killed writers; return the deleted sets."""
        with self._locked():
            gone = [weights for weights in self.holds() if weights not in ids]
            for weights in gone:
                self._path(weights).unlink()
            for left in self.folder.glob(f"*{SCRATCH}"):
                left.unlink()
        return tuple(gone)

    def _fingerprint_here(self, weights: WeightsId) -> str | None:
        """Fingerprint of the stored set; None if it is absent or damaged, so that publishing it again repairs it."""
        try:
            content = read_set(self._path(weights)) if self._path(weights).is_file() else None
        except WeightsError:
            return None
        return content.fingerprint if content is not None and content.weights == weights else None

    def _mapped(self, weights: WeightsId) -> MappedWeights:
        path = self._path(weights)
        content = _content(path)
        # A file renamed by hand must not pass for another version.
        if content.weights != weights:
            raise WeightsError(
                f"{path} holds {content.weights} but was opened as {weights}, so it was renamed; fetch {weights} again."
            )
        return content

    def _write(self, path: Path, state: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        scratch = path.with_name(f"{path.name}{SCRATCH}")
        try:
            download.write(scratch, state, metadata)
            os.replace(scratch, path)
        except OSError as problem:
            raise EnvironmentProblem(
                f"{path.name} cannot be written to the weight store {self.folder} ({problem}), where "
                f"{shutil.disk_usage(self.folder).free / 1e9:.2f} GB are free; free memory or disk there."
            ) from problem
        finally:
            scratch.unlink(missing_ok=True)

    def _path(self, weights: WeightsId) -> Path:
        return self.folder / f"{weights}{SUFFIX}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def read_set(path: Path) -> MappedWeights:
    """Map one set and verify its bytes."""
    content = _content(path)
    found = fingerprint(content.tensors)
    if found != content.fingerprint:
        raise WeightsError(
            f"the weights in {path} have fingerprint {found} but its header has {content.fingerprint}, so it was "
            "altered; copy it again, or name another set of its run."
        )
    return content


def _content(path: Path) -> MappedWeights:
    """Map one set without reading its weights."""
    try:
        with safe_open(path, framework="pt") as file:
            facts = set_facts(path, file.metadata(), names := list(file.keys()))
            tensors = {name: file.get_tensor(name) for name in names}
    except (SafetensorError, OSError) as error:
        raise unreadable(path, error) from error
    return MappedWeights(
        weights=facts.weights,
        family=facts.family,
        fingerprint=facts.fingerprint,
        base_digest=facts.base_digest,
        tensors=tensors,
    )
