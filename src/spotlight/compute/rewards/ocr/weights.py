"""The vendored OCR weights: their location, sizes and hashes.

Invariant: no byte of a model is used before the whole file's sha256 is checked.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnxruntime

from spotlight.assets import REMEDY, asset
from spotlight.core.errors import WeightsError

ASSETS = asset("ocr")


@dataclass(frozen=True)
class PackagedFile:
    """One file of the package's data, identified by its size and hash."""

    name: str
    size: int
    sha256: str

    @property
    def tag(self) -> str:
        """Short identifier of this file in a reward's version."""
        return self.sha256[:8]

    def load(self, folder: Path = ASSETS) -> bytes:
        """Return the content; raise a WeightsError if size or hash differ."""
        path = folder / self.name
        try:
            content = path.read_bytes()
        except OSError as error:
            raise WeightsError(
                f"OCR weights {path} cannot be read ({error.strerror}), so no text can be read; {REMEDY}"
            ) from error
        if len(content) != self.size:
            raise WeightsError(
                f"OCR weights {path} have {len(content)} bytes, not {self.size}, so the file is truncated "
                f"or replaced; {REMEDY}"
            )
        digest = hashlib.sha256(content).hexdigest()
        if digest != self.sha256:
            raise WeightsError(
                f"OCR weights {path} have sha256 {digest[:12]}, not {self.sha256[:12]}, so their scores "
                f"would not be comparable; {REMEDY}"
            )
        return content


def open_session(weights: PackagedFile, folder: Path) -> Any:
    """An onnxruntime session on one CPU thread: reward processes are the unit of parallelism."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(weights.load(folder), options, providers=["CPUExecutionProvider"])
