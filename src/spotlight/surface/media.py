"""Pictures and videos that a run's journal names, read only if they are what they claim to be.

Invariant: a file is served only if it lies in the run's folder, links resolved, and starts as its suffix says
(tests/unit/test_report.py).
"""

import base64
from pathlib import Path

LARGEST_EMBEDDED = 4 * 2**20
"""Bytes; a larger picture is left out of the report, to keep it small enough for mail."""
TYPES = {".png": "image/png", ".mp4": "video/mp4", ".webm": "video/webm"}
_MAGIC = {".png": (0, b"\x89PNG\r\n\x1a\n"), ".mp4": (4, b"ftyp"), ".webm": (0, b"\x1aE\xdf\xa3")}


class PictureFolder:
    """The media of one run."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder.resolve()

    def find(self, name: str) -> Path | None:
        """The file of a name in the journal; None if it is missing, elsewhere or of another kind."""
        path = (self._folder / name).resolve()
        if path.suffix not in _MAGIC or not path.is_relative_to(self._folder) or not path.is_file():
            return None
        offset, magic = _MAGIC[path.suffix]
        with path.open("rb") as file:
            return path if file.read(offset + len(magic))[offset:] == magic else None

    def is_embeddable(self, name: str) -> bool:
        path = self.find(name)
        return path is not None and path.stat().st_size <= LARGEST_EMBEDDED

    def embedded(self, name: str) -> str:
        """The media as a data address; empty if it cannot be shown."""
        path = self.find(name)
        if path is None:
            return ""
        return f"data:{TYPES[path.suffix]};base64,{base64.b64encode(path.read_bytes()).decode()}"
