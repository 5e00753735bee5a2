"""The run's files: tensors of rollouts until a checkpoint covers them, pictures of evaluations, published weights.

Invariant: a file counts once its digest is in the journal, and by then it is written whole; one that is missing or
differs after a crash is reported, so that its sample can be made again (tests/unit/test_payloads.py).
"""

import hashlib
import io
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Protocol

from PIL import Image as PilImage
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load

from spotlight.compute.rollout.seal import is_intact, seal_of
from spotlight.core.errors import Stopped
from spotlight.core.work import Request, WeightsId, Work

PICTURES = 24
"""Pictures kept per evaluation, always of the same prompts: enough to see what changes."""


class Storage(Protocol):
    """Storage for data that is too large for the journal."""

    def keep(self, request: Request, blob: bytes) -> tuple[str, str] | None:
        """Keep the payload of a finished sample, if it has one; return its name and digest."""

    def is_whole(self, name: str, digest: str) -> bool: ...

    def has_weights(self, weights: WeightsId, digest: str) -> bool:
        """Whether the set is there with these bytes; another gang may have left others under its name."""

    def weights_path(self, weights: WeightsId) -> str: ...

    def keep_weights(self, wanted: Collection[WeightsId]) -> None:
        """Delete all published weights but these."""

    def covered(self, iteration: int) -> None:
        """Delete tensors and checkpoints that a durable checkpoint of all before this iteration replaces."""


class PayloadFolder:
    """`payloads/ITERATION/GROUP-SEED.safetensors` and `images/ITERATION/GROUP.png` under the run's folder."""

    def __init__(self, folder: Path, keep_newest_checkpoints: Callable[[], None]) -> None:
        self._run_folder = folder
        self._keep_newest_checkpoints = keep_newest_checkpoints

    def keep(self, request: Request, blob: bytes) -> tuple[str, str] | None:
        """Keep a rollout's tensors unchanged, or the picture of one of the first held-out prompts."""
        if request.work is Work.ROLLOUT:
            name = f"payloads/{request.iteration:06d}/{request.group:04d}-{request.sample.seed}.safetensors"
            self._write(request, name, blob)
            # The worker's seal also covers the transfer; hashing again would cost more than the file.
            return name, seal_of(blob)
        if request.work is Work.EVALUATION and request.group < PICTURES:
            name, picture = f"images/{request.iteration:06d}/{request.group:03d}.png", _png(blob)
            self._write(request, name, picture)
            return name, content_digest(picture)
        return None

    def _write(self, request: Request, name: str, blob: bytes) -> None:
        path = f"{self._run_folder}/{name}"
        try:
            _write(path, blob)
        except OSError as error:
            raise Stopped(
                f"the finished sample {request.id} ({len(blob)} bytes) cannot be written to {path} ({error.strerror}), "
                "so the run stops before anything is lost; free some space there, then `spotlight resume` goes on."
            ) from error

    def is_whole(self, name: str, digest: str) -> bool:
        """Whether a rollout's tensors are there, undamaged, and the accepted ones."""
        path = self._run_folder / name
        if not path.is_file():
            return False
        data = path.read_bytes()
        return seal_of(data) == digest and is_intact(data)

    def has_weights(self, weights: WeightsId, digest: str) -> bool:
        try:
            with safe_open(self.weights_path(weights), framework="np") as file:
                return (file.metadata() or {}).get("fingerprint") == digest
        except (OSError, SafetensorError):
            return False

    def weights_path(self, weights: WeightsId) -> str:
        return str(self._run_folder / "weights" / f"{weights}.safetensors")

    def keep_weights(self, wanted: Collection[WeightsId]) -> None:
        names = {str(weights) for weights in wanted}
        for path in sorted((self._run_folder / "weights").glob("*.safetensors")):
            if path.stem not in names:
                path.unlink()

    def covered(self, iteration: int) -> None:
        self._keep_newest_checkpoints()
        folder = self._run_folder / "payloads"
        for child in sorted(folder.glob("[0-9]*")):
            if int(child.name) < iteration:
                shutil.rmtree(child)


def _png(blob: bytes) -> bytes:
    file = io.BytesIO()
    PilImage.fromarray(load(blob)["image"]).save(file, "PNG")
    return file.getvalue()


def _write(path: str, blob: bytes) -> None:
    """Write by plain system calls, as few as possible, because every finished sample waits for this.

    The file is not read before its acceptance is recorded, so it need not be written aside and renamed.
    """
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        rest = memoryview(blob)
        while rest:
            rest = rest[os.write(file, rest) :]
    finally:
        os.close(file)


def content_digest(blob: bytes) -> str:
    return hashlib.blake2b(blob, digest_size=16).hexdigest()
