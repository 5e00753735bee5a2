"""Pickles that write a marker file when they are opened, in the places of a run's folder that others may fill."""

import io
import pickle
from pathlib import Path

import torch


class Bomb:
    """Writes the marker when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return exec, (f"open({str(self.marker)!r}, 'w').close()",)


def bomb(marker: Path) -> bytes:
    """The bomb as `pickle` writes it, which is how torch.distributed.checkpoint keeps its metadata."""
    return pickle.dumps(Bomb(marker))


def saved_bomb(marker: Path) -> bytes:
    """The bomb as `torch.save` writes it."""
    file = io.BytesIO()
    torch.save(Bomb(marker), file)
    return file.getvalue()


def planted_everywhere(run: Path, marker: Path) -> list[Path]:
    """Plant bombs beside the checkpoint's files and in place of every optional file; return the files."""
    (step,) = (run / "checkpoints").glob("step_*")
    payload = run / "payloads" / "000000" / "0000-0.safetensors"
    payload.parent.mkdir(parents=True, exist_ok=True)
    lost = [*(run / "weights").glob("*.safetensors"), *(run / "images").rglob("*.png")]
    planted = [step / ".metadata", step / "__0_0.distcp", *lost, *(run / "journal").glob("snapshot-*"), payload]
    for number, path in enumerate(planted):
        path.write_bytes(saved_bomb(marker) if number % 2 else bomb(marker))
    return planted
