"""Stages of a run's start: imports, loading of workers, the first evaluation.

Folds the records of one life of a run, so that a resumed run has stages too.
"""

from enum import IntEnum

from spotlight.core.events import Accepted, AnyEvent, Evaluated, Issued, NodeJoined, StepCommitted, WorkerJoined
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId, Work


class Stage(IntEnum):
    """Stages in order; a run never returns to an earlier one."""

    IMPORTS = 0
    LOADING = 1
    EVALUATION = 2
    OVER = 3


class Startup:
    """The stage of a run, and a line about it."""

    def __init__(self, is_over: bool = False) -> None:
        """`is_over` for a run that is past its start when it is first seen."""
        self.stage = Stage.OVER if is_over else Stage.IMPORTS
        self._slots = 0
        """Number of slots of the nodes that have joined."""
        self._workers: set[WorkerId] = set()
        self._pictures: set[RequestId] = set()
        """All requests of the first evaluation."""
        self._drawn = 0

    def apply(self, event: AnyEvent) -> bool:
        """Whether to print the line again: at every stage, and when the number of workers doubles or is complete."""
        before = self.stage
        match event:
            case _ if self.stage is Stage.OVER:
                return False
            case NodeJoined(slots=slots):
                self._slots += slots
                self._reach(Stage.LOADING)
            case WorkerJoined(worker=worker):
                self._workers.add(worker)
                count = len(self._workers)
                return self.stage is Stage.LOADING and (count == self._slots or count.bit_count() == 1)
            case Issued(requests=requests) if requests[0].work is Work.EVALUATION:
                self._pictures = {request.id for request in requests}
                self._reach(Stage.EVALUATION)
            case Accepted(request=request) if request in self._pictures:
                self._drawn += 1
            case Accepted() if not self._pictures:
                self._reach(Stage.OVER)
            case Evaluated() | StepCommitted():
                self._reach(Stage.OVER)
            case _:
                pass
        return self.stage is not before

    def line(self) -> str | None:
        """The line of the stage; None when the start is over."""
        match self.stage:
            case Stage.IMPORTS:
                return "starting: importing the modules that all workers share"
            case Stage.LOADING if not self._workers:
                return "starting: workers load the model"
            case Stage.LOADING:
                return f"starting: {len(self._workers)} of {self._slots} workers have loaded the model"
            case Stage.EVALUATION:
                return f"first evaluation: {self._drawn} of {len(self._pictures)} pictures"
            case Stage.OVER:
                return None

    def _reach(self, stage: Stage) -> None:
        self.stage = max(self.stage, stage)
