"""A machine that joins a real run from a folder of its own, over TLS."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from live_run import LiveRun

from spotlight.pools.machine import sockets
from spotlight.pools.tokens import TokenFile, token_file_of

PATIENCE_S = 120.0


class JoinedMachine:
    """`spotlight join` in a process; its node is NAME.1, NAME.2 and so on."""

    def __init__(self, run: LiveRun, name: str = "box") -> None:
        self.run = run
        self.name = name
        self.folder = run.folder.with_name(f"{run.folder.name}-{name}")
        self.folder.mkdir()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def token_file(self) -> TokenFile:
        return token_file_of(self.run.run)

    @property
    def private(self) -> Path:
        """Folder of the machine in shared memory."""
        return sockets(self.folder / "joined")

    def join(self, gateway: str = "", prefix: tuple[str, ...] = ()) -> None:
        """Join with a copy of the run's token file, at this host instead of the run's own; `prefix` comes before the
        command."""
        file: TokenFile = self.run.wait_for(self._listening)  # type: ignore[assignment]
        file.write(self.folder / "token.json")
        address = f"{gateway}:{file.address.rpartition(':')[2]}" if gateway else file.address
        command = [
            *prefix, sys.executable, "-m", "spotlight.surface.cli.main", "join", address, "--token-file", "token.json",
            "--name", self.name, "--folder", "joined",
        ]  # fmt: skip
        with (self.folder / "join.log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )

    def _listening(self) -> TokenFile | None:
        """The token file, once the run of this life listens."""
        if f"spotlight join {self.address() or '-'} " not in self.run.log():
            return None
        return self.token_file

    def address(self) -> str:
        try:
            return self.token_file.address
        except Exception:
            return ""

    def kill(self) -> None:
        """Kill the machine's first process with SIGKILL; the others must end on their own."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._process = None

    def interrupt(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)

    def finish(self) -> int:
        """Wait for the end of the command; returns its exit code."""
        assert self._process is not None
        code = self._process.wait(PATIENCE_S)
        self._process = None
        return code

    def log(self) -> str:
        return (self.folder / "join.log").read_text()

    def close(self) -> None:
        if self._process is not None:
            self.kill()
