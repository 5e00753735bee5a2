"""The process that serves a run's folder to other machines (`node/blob_server.py`), beside the controller.

STOPPED --start--> SERVING --process died--> SERVING again, at the same port --stop--> STOPPED
"""

import asyncio
import contextlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from spotlight.core.errors import EnvironmentProblem

START_S = 60.0
PAUSE_S = 0.5
"""Pause before a process that died is started again."""


@dataclass(frozen=True, kw_only=True)
class BlobHomeSettings:
    folder: Path
    """The run's folder."""
    host: str
    port: int
    """0: any free one."""
    identity: Path
    """Folder of the run's certificate."""
    secret: str
    """From which nodes' tokens are made."""


class BlobHome:
    """Starts the process, and starts it again when it dies."""

    def __init__(self, settings: BlobHomeSettings) -> None:
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self.port = settings.port

    async def start(self) -> int:
        """Return the port once the process serves there."""
        self.port = await self._launch()
        self._keeping = asyncio.create_task(self._keep())
        return self.port

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            await asyncio.sleep(PAUSE_S)
            with contextlib.suppress(EnvironmentProblem):
                await self._launch()

    async def _launch(self) -> int:
        settings = self._settings
        log = settings.folder / "logs" / "blobs.log"
        log.parent.mkdir(exist_ok=True)
        with log.open("ab") as errors:
            self._process = process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "spotlight.node.blob_server",
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
            )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        content = {"folder": str(settings.folder), "host": settings.host, "port": str(self.port)}
        secrets = {"identity": str(settings.identity), "secret": settings.secret}
        process.stdin.write(json.dumps(content | secrets).encode() + b"\n")
        with contextlib.suppress(TimeoutError, ValueError):
            return int(await asyncio.wait_for(process.stdout.readline(), START_S))
        process.kill()
        await process.wait()
        raise EnvironmentProblem(
            f"the server of the run's files cannot listen at {settings.host}:{self.port} (see {log}), so no machine "
            "can join; free that port, which is the one after cluster.listen's."
        )
