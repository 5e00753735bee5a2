"""Starts the process that encodes or checks prompts (`encoder.py`), so that no controller loads torch."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from spotlight.compute.models.config import ModelConfig
from spotlight.core.errors import EnvironmentProblem, InputError, SpotlightError

# With -P nothing is imported from the working folder.
COMMAND = (sys.executable, "-P", "-m", "spotlight.compute.models.encoder")


def problems_with(model: ModelConfig, texts: Sequence[str]) -> list[str | None]:
    """Why the model's tokenizers refuse each text; None where they accept it."""
    done = subprocess.run(COMMAND, input=_job(model, "cpu", Path(), texts, check=True), capture_output=True)
    if done.returncode:
        raise _failure(done.returncode, done.stderr.decode(errors="replace"), "checked", "")
    return msgspec.json.decode(done.stdout, type=list[str | None])


async def encode(
    model: ModelConfig, device: str, folder: Path, texts: Sequence[str], log: Path, progress: Callable[[str], None]
) -> None:
    """Write the embeddings of these texts; `progress` is called with `done/all`. A cancelled call ends the process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(_job(model, device, folder, texts))
            process.stdin.close()
            async for line in process.stdout:
                progress(line.decode().strip())
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if code:
        raise _failure(code, log.read_text(errors="replace"), "encoded", f" (see {log})")


def _job(model: ModelConfig, device: str, folder: Path, texts: Sequence[str], check: bool = False) -> bytes:
    return msgspec.json.encode(
        {
            "model": model.model_dump(mode="json"),
            "device": device,
            "folder": str(folder),
            "texts": list(texts),
            "check": check,
        }
    )


def _failure(code: int, output: str, what: str, where: str) -> SpotlightError:
    last = output.strip().rpartition("\n")[2] or f"exit code {code}"
    if code == InputError.exit_code:
        return InputError(last)
    return EnvironmentProblem(
        f"prompts could not be {what} ({last}){where}; free memory on the device of the reserved node, or look there."
    )
