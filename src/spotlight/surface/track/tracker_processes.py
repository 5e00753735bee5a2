"""The controller's side of its trackers: starts their processes, refuses a run whose tracker cannot start, records a
problem of a later one once, and waits for them at the end. `tracker_process.py` has the stages.
"""

import asyncio
import hashlib
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from spotlight.core.errors import EnvironmentProblem, error_of
from spotlight.core.events import RunStarted
from spotlight.core.journal import read
from spotlight.folder import OutputConfig, RunFolder, TrackerKind
from spotlight.surface.track.tracker import TrackedRun, safe_name
from spotlight.surface.track.tracker_process import TrackerReport, TrackerStage

START_S = 120.0
"""Wait for a tracker to start: a service that replies slowly."""
CLOSE_S = 60.0
"""Wait for all trackers after the end of the run."""
Note = Callable[[str, str], None]
"""Records a problem of a source."""


class TrackerProcess:
    """The process of one tracker."""

    def __init__(self, kind: TrackerKind) -> None:
        self.kind = kind
        command = [sys.executable, "-P", "-m", "spotlight.surface.track.tracker_process", kind.value]
        # A session of its own: Ctrl-C in the terminal is for the controller.
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        )

    def reach(self, stage: TrackerStage) -> None:
        """Wait until the process has reached this stage of its start; raises if it cannot."""
        report = self._report()
        if report is None:
            raise EnvironmentProblem(
                f"the tracker {self.kind.value} did not start within {START_S:.0f} s; look at its service, or leave it "
                "out of output.trackers."
            )
        if report.stage is stage:
            return
        if report.exit_code:
            raise error_of(report.exit_code, report.sentence)
        raise EnvironmentProblem(
            f"the tracker {self.kind.value} cannot start ({report.sentence}); fix that, or leave it out of "
            "output.trackers."
        )

    def open(self, run: TrackedRun) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(msgspec.json.encode(run) + b"\n")
            self._process.stdin.flush()
        self.reach(TrackerStage.OPEN)

    async def watch(self, note: Note) -> None:
        """Record the problems of the process, and its end if that comes before the end of the run."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        assert self._process.stdout is not None
        # The pipe stays open when this is cancelled.
        pipe = os.fdopen(os.dup(self._process.stdout.fileno()), "rb", buffering=0)
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
        is_over = False
        try:
            while line := await reader.readline():
                report = msgspec.json.decode(line, type=TrackerReport)
                is_over = report.stage in (TrackerStage.OFF, TrackerStage.CLOSED)
                if report.sentence:
                    note(self.kind.value, report.sentence)
            if not is_over:
                note(
                    self.kind.value,
                    f"the process of the tracker {self.kind.value} ended, and the run goes on without it; its output "
                    f"is in logs/tracker-{self.kind.value}.log.",
                )
        finally:
            transport.close()

    def finish(self, deadline: float) -> bool:
        """Wait for the process to write everything out; whether it ended by itself."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return False
        return True

    def _report(self) -> TrackerReport | None:
        """The next line of the process; None if none comes in time."""
        out = self._process.stdout
        assert out is not None
        deadline, data = time.monotonic() + START_S, b""
        while not data.endswith(b"\n"):
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            chunk = os.read(out.fileno(), 1 << 16)
            if not chunk:
                return TrackerReport(stage=TrackerStage.FAILED, sentence=self._last_words())
            data += chunk
        return msgspec.json.decode(data, type=TrackerReport)

    def _last_words(self) -> str:
        assert self._process.stderr is not None
        lines = self._process.stderr.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "its process ended")


class TrackerProcesses:
    """All trackers of a run; as a context manager, ends their processes."""

    def __init__(self, kinds: Sequence[TrackerKind]) -> None:
        """Start them; raises if one cannot be used."""
        self._trackers: list[TrackerProcess] = []
        try:
            self._trackers += [TrackerProcess(kind) for kind in kinds]
            for tracker in self._trackers:
                tracker.reach(TrackerStage.READY)
        except BaseException:
            self._finish(0.0)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        late = self._finish(CLOSE_S)
        for name in late:
            print(f"the tracker {name} had not written everything {CLOSE_S:.0f} s after the end", file=sys.stderr)

    def open(self, folder: RunFolder, output: OutputConfig, prices: Path | None) -> None:
        """Begin the run in every tracker; raises if one refuses."""
        if self._trackers:
            run = tracked_run(folder, output, prices)
            for tracker in self._trackers:
                tracker.open(run)

    async def watch(self, note: Note) -> None:
        """Run beside the loop; never raises for a tracker's sake."""
        await asyncio.gather(*(tracker.watch(note) for tracker in self._trackers))

    def _finish(self, seconds: float) -> list[str]:
        deadline = time.monotonic() + seconds
        return [tracker.kind.value for tracker in self._trackers if not tracker.finish(deadline)]


def tracked_run(folder: RunFolder, output: OutputConfig, prices: Path | None) -> TrackedRun:
    """The run by its first record, which no resume changes."""
    started = next(record.event for record in read(folder.journal))
    assert isinstance(started, RunStarted)
    identity = f"{started.run_seed} {started.config_digest} {started.wall!r}"
    return TrackedRun(
        folder=str(folder.path),
        id=hashlib.blake2b(identity.encode(), digest_size=6).hexdigest(),
        name=safe_name(folder.name),
        project=output.project,
        settings=folder.read_config(),
        prices=None if prices is None else str(prices.resolve()),
    )
