"""Encoded prompts of a run on disk: one file per prompt, named after the text encoder and the text; free of torch.

`encoder.py` writes them, workers and trainer read them, so no worker loads a text encoder.

Invariant: a file with a prompt's name holds the conditioning of that text by that encoder, whole
(tests/unit/test_embeddings.py).
"""

import hashlib
import os
from collections.abc import Collection, Iterable
from pathlib import Path

from spotlight.compute.models.catalogue import ModelFacts
from spotlight.compute.models.config import ModelConfig

SUFFIX = ".safetensors"


class EmbeddingFolder:
    """The files of one text encoder."""

    def __init__(self, path: Path, encoder: str) -> None:
        """`encoder` identifies everything but the text that an embedding depends on."""
        self.path = path
        self._encoder = encoder

    @classmethod
    def of(cls, path: Path, facts: ModelFacts, model: ModelConfig) -> "EmbeddingFolder":
        """The folder of a run with this model; kinds of devices and lengths of padding have their own embeddings."""
        kind = "cuda" if model.is_on_gpu else "cpu"
        return cls(path, f"{facts.text_digest}|{facts.precision(model)}|{kind}|{model.max_text_tokens}")

    def file(self, text: str) -> Path:
        key = hashlib.blake2b(f"{self._encoder}|{text}".encode(), digest_size=16).hexdigest()
        return self.path / f"{key}{SUFFIX}"

    def missing(self, texts: Iterable[str]) -> list[str]:
        """Those without a file, each once, in order."""
        present = {entry.name for entry in os.scandir(self.path)} if self.path.is_dir() else set()
        return [text for text in dict.fromkeys(texts) if self.file(text).name not in present]

    def average_bytes(self) -> int | None:
        """Mean size of the files; None if there are none."""
        sizes = [size for _, size in self._files().values()]
        return sum(sizes) // len(sizes) if sizes else None

    def trim(self, limit: int, needed: Collection[str]) -> None:
        """Remove the oldest files that are not needed while all together exceed `limit` bytes."""
        files = self._files()
        kept = {self.file(text) for text in needed}
        excess = sum(size for _, size in files.values()) - limit
        for path in sorted(files.keys() - kept, key=lambda path: (files[path][0], path)):
            if excess <= 0:
                return
            path.unlink(missing_ok=True)
            excess -= files[path][1]

    def _files(self) -> dict[Path, tuple[int, int]]:
        """Time of the last change and size of every file."""
        found = {path: path.stat() for path in self.path.glob(f"*{SUFFIX}")}
        return {path: (status.st_mtime_ns, status.st_size) for path, status in found.items()}
