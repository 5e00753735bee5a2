"""Progress bars on standard error, shown only for long waits."""

import threading
from types import TracebackType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import TaskID

PATIENCE_S = 2.0


class PatientProgress:
    """A bar per stage, shown after `PATIENCE_S`; never on a standard error that is not a terminal."""

    def __init__(self) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from spotlight.surface.terminal import terminal

        console = terminal(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bars = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._tasks: dict[str, TaskID] = {}
        # A timer, because the first report may itself take long.
        self._timer = threading.Timer(PATIENCE_S, self._bars.start)
        self._timer.daemon = True

    def report(self, stage: str, done: int, total: int) -> None:
        if stage not in self._tasks:
            self._tasks[stage] = self._bars.add_task(stage, total=total)
        self._bars.update(self._tasks[stage], completed=done)

    def __enter__(self) -> "PatientProgress":
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        self._timer.join()
        self._bars.stop()
