"""Starts the processes that check prompts (`prompt_check.py`) and encode them (`encoder.py`), free of torch."""

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
CHECK = (sys.executable, "-P", "-m", "spotlight.compute.models.prompt_check")
ENCODE = (sys.executable, "-P", "-m", "spotlight.compute.models.encoder")


def problems_with(model: ModelConfig, texts: Sequence[str]) -> list[str | None]:
    """Why the model's tokenizers refuse each text; None where they accept it."""
    job = msgspec.json.encode({"model": model.model_dump(mode="json"), "texts": list(texts)})
    done = subprocess.run(CHECK, input=job, capture_output=True)
    if done.returncode:
        raise _failure(done.returncode, done.stderr.decode(errors="replace"), "checked", "")
    return msgspec.json.decode(done.stdout, type=list[str | None])


async def encode(
    model: ModelConfig, device: str, folder: Path, texts: Sequence[str], log: Path, progress: Callable[[str], None]
) -> None:
    """Write the embeddings of these texts; `progress` is called with `done/all`. A cancelled call ends the process."""
    settings = model.model_dump(mode="json")
    job = msgspec.json.encode({"model": settings, "device": device, "folder": str(folder), "texts": list(texts)})
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = await asyncio.create_subprocess_exec(
            *ENCODE, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=errors
        )
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(job)
            process.stdin.close()
            async for line in process.stdout:
                progress(line.decode().strip())
            code = await process.wait()
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
    if code:
        raise _failure(code, log.read_text(errors="replace"), "encoded", f" (see {log})")


def _failure(code: int, output: str, what: str, where: str) -> SpotlightError:
    last = output.strip().rpartition("\n")[2] or f"exit code {code}"
    if code == InputError.exit_code:
        return InputError(last)
    return EnvironmentProblem(
        f"prompts could not be {what} ({last}){where}; free memory on the device of the reserved node, or look there."
    )
