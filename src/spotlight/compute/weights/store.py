"""A node's published weights: one safetensors file per set in shared memory, written once and mapped by every worker.

Invariant: a file under its final name is whole, and `open` returns only weights whose digest was computed from the
bytes on this node (tests/unit/test_weight_store.py). Writers work under a scratch name and rename; a lock of the
folder lets the first of several workers copy a set and the others find it. The kernel frees the lock of a killed
writer, and `keep` sweeps what it left under a scratch name.

Mappings are private: a stray write would change one process's copy of a page, never the file, and a set that is
deleted stays readable for those who have it mapped.
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from spotlight.compute.weights.digest import fingerprint
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId

SUFFIX = ".safetensors"
VERIFIED = ".verified"
SCRATCH = ".part"


@dataclass(frozen=True, kw_only=True)
class StoredWeights:
    """One set in a node's store."""

    weights: WeightsId
    digest: str
    path: Path
    size: int
    """Bytes of the file."""


@dataclass(frozen=True, kw_only=True)
class MappedWeights:
    """The content of one set; the tensors are pages of the file, so they must not be written to."""

    weights: WeightsId
    family: str
    digest: str
    base_digest: str
    """Of the base weights that the set belongs to: what it does not hold is theirs."""
    tensors: Mapping[str, Tensor]


class NodeStore:
    """The sets of one node, in `folder`; any number of processes may have it open."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def publish(self, weights: WeightsId, family: str, state: Mapping[str, Tensor], base_digest: str) -> StoredWeights:
        """Write a set; publishing the same once more changes nothing, other weights under its id are refused."""
        # Named where the weights are: what the way to the file alters, the reader finds out.
        value = fingerprint(state)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        metadata = {
            "format": "pt",
            "family": family,
            "digest": value,
            "base_digest": base_digest,
            "version": str(weights.version),
            "policy": weights.policy.value,
        }
        return self._put(weights, value, lambda scratch: save_file(tensors, scratch, metadata=metadata))

    def fetch_from(self, path: Path, weights: WeightsId, expected_digest: str) -> StoredWeights:
        """Copy a set that another node published, unless it is here already; the copy is verified before it counts."""

        def copy(scratch: Path) -> None:
            try:
                shutil.copyfile(path, scratch)
            except FileNotFoundError as problem:
                raise WeightsError(
                    f"the weights {weights} were to be fetched from {path}, where there is no such file, so they were "
                    "deleted or never published; ask for a set that is still kept."
                ) from problem
            content = _mapped(scratch, called=path)
            _verify(content, called=path)
            if (content.weights, content.digest) != (weights, expected_digest):
                raise WeightsError(
                    f"{path} holds {content.weights} with digest {content.digest}, but {weights} with digest "
                    f"{expected_digest} was announced, so it is not what was published; publish it again."
                )

        return self._put(weights, expected_digest, copy)

    def open(self, weights: WeightsId) -> MappedWeights:
        """Map a set; the first process of the node that opens it checks its digest for all."""
        with self._locked():
            if not self._path(weights).is_file():
                here = ", ".join(str(held) for held in self.holds()) or "none"
                raise WeightsError(
                    f"the weights {weights} are not in the store {self.folder}, which holds {here}; publish or fetch "
                    "them first."
                )
            return self._verified(weights)

    def holds(self) -> tuple[WeightsId, ...]:
        """The sets that are here, oldest version first."""
        names = [path.stem.rpartition("-") for path in self.folder.glob(f"*{SUFFIX}")]
        return tuple(sorted(WeightsId(Version(int(version)), Policy(policy)) for policy, _, version in names))

    def keep(self, ids: Collection[WeightsId]) -> tuple[WeightsId, ...]:
        """Delete every other set, and what killed writers left; returns the sets that were deleted."""
        with self._locked():
            gone = [weights for weights in self.holds() if weights not in ids]
            for weights in gone:
                self._path(weights).unlink()
            marks = self.folder.glob(f"*{VERIFIED}")
            orphans = [mark for mark in marks if not mark.with_suffix(SUFFIX).exists()]
            for left in (*orphans, *self.folder.glob(f"*{SCRATCH}")):
                left.unlink()
        return tuple(gone)

    def _put(self, weights: WeightsId, value: str, write: Callable[[Path], None]) -> StoredWeights:
        path = self._path(weights)
        with self._locked():
            present = self._digest_here(weights)
            if present is not None and present != value:
                raise WeightsError(
                    f"{weights} is in the store {self.folder} with digest {present} and was to be stored with {value}, "
                    "but published weights never change; publish them as another version."
                )
            if present is None:
                self._replace(path, write)
            return StoredWeights(weights=weights, digest=value, path=path, size=path.stat().st_size)

    def _digest_here(self, weights: WeightsId) -> str | None:
        """None also where the file is damaged, so that fetching it again heals it."""
        try:
            return self._verified(weights).digest if self._path(weights).is_file() else None
        except WeightsError:
            return None

    def _verified(self, weights: WeightsId) -> MappedWeights:
        path, mark = self._path(weights), self._mark(weights)
        content = _mapped(path, called=path)
        # The name is only a name: what was renamed by hand must not be taken for another version.
        if content.weights != weights:
            raise WeightsError(
                f"{path} holds {content.weights} but was opened as {weights}, so it was renamed; fetch {weights} again."
            )
        seen = _stamp(path, content.digest)
        if not mark.is_file() or mark.read_text() != seen:
            _verify(content, called=path)
            self._replace(mark, lambda scratch: scratch.write_text(seen))
        return content

    def _replace(self, path: Path, write: Callable[[Path], object]) -> None:
        scratch = path.with_name(f"{path.name}{SCRATCH}")
        try:
            write(scratch)
            os.replace(scratch, path)
        except (OSError, SafetensorError) as problem:
            raise EnvironmentProblem(
                f"{path.name} cannot be written to the weight store {self.folder} ({problem}), where "
                f"{shutil.disk_usage(self.folder).free / 1e9:.2f} GB are free; free memory or disk there."
            ) from problem
        finally:
            scratch.unlink(missing_ok=True)

    def _path(self, weights: WeightsId) -> Path:
        return self.folder / f"{weights}{SUFFIX}"

    def _mark(self, weights: WeightsId) -> Path:
        return self.folder / f"{weights}{VERIFIED}"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _mapped(path: Path, called: Path) -> MappedWeights:
    """Without reading the weights; `called` is the name in what is said of the file."""
    try:
        with safe_open(path, framework="pt") as file:
            weights, metadata = _identity(called, file.metadata())
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as problem:
        raise WeightsError(
            f"the weights file {called} ({path.stat().st_size} bytes) cannot be read ({problem}), so it is truncated "
            "or not safetensors; fetch or publish it again."
        ) from problem
    return MappedWeights(
        weights=weights,
        family=metadata["family"],
        digest=metadata["digest"],
        base_digest=metadata["base_digest"],
        tensors=tensors,
    )


def _identity(path: Path, metadata: Mapping[str, str] | None) -> tuple[WeightsId, Mapping[str, str]]:
    known = metadata or {}
    absent = sorted({"family", "digest", "base_digest", "version", "policy"} - set(known))
    if absent:
        raise WeightsError(
            f"the weights file {path} does not name its {', '.join(absent)}, so no trainer published it; give a file "
            "of a run's weight store."
        )
    return WeightsId(Version(int(known["version"])), Policy(known["policy"])), known


def _verify(content: MappedWeights, called: Path) -> None:
    found = fingerprint(content.tensors)
    if found != content.digest:
        raise WeightsError(
            f"the weights {content.weights} in {called} have digest {found} but the file says {content.digest}, so it "
            "was altered; fetch or publish it again."
        )


def _stamp(path: Path, value: str) -> str:
    """Of the very file that was verified; another one, or a later write to it, has another."""
    status = path.stat()
    return f"{value} {status.st_ino} {status.st_size} {status.st_mtime_ns}"
