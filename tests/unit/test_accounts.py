"""Spans that workers report become records: help is separate from a worker's own work, and no time counts twice."""

from scheduled_world import EXACT

from spotlight.control.accounts import Accounts
from spotlight.control.directory import Directory, KnownWorker
from spotlight.control.ledger import Ledger
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.tag import Assist, NextPart
from spotlight.control.scheduler import Scheduler
from spotlight.core import messages as m
from spotlight.core.events import AnyEvent, Worked
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity

ROLLS, TRAINS = WorkerId("rolls"), WorkerId("trains")
BEGAN = 1000.0
"""Start of the run by the clock of this process."""


class Harness:
    """Accounts of a gang of one and one other worker."""

    def __init__(self) -> None:
        directory = Directory()
        for worker, trains in ((ROLLS, False), (TRAINS, True)):
            directory.introduce(worker, KnownWorker(NodeId("node"), trains))
        self.assist = Assist(PipelineConfig(gap=True), directory, Scheduler(Ledger(), EXACT))
        self.events: list[AnyEvent] = []
        self._accounts = Accounts(directory, self.assist, self.events.append, lambda at: at - BEGAN)

    def wait(self, at: float) -> None:
        self.assist.wait(lambda: NextPart([], 1, None), BEGAN + at)

    def rest(self, at: float) -> None:
        self.assist.rest(BEGAN + at)

    def record(
        self, worker: WorkerId, *spans: tuple[Activity, float, float], at: float
    ) -> list[tuple[str, float, float]]:
        """Report these spans at this time; return the spans that are recorded."""
        self.events.clear()
        reported = [m.Span(activity, at - start, at - end) for activity, start, end in spans]
        self._accounts.add_spans(worker, reported, BEGAN + at)
        return [(event.activity.value, event.start, event.end) for event in self.events if isinstance(event, Worked)]


def test_rollouts_of_a_trainer_are_help_only_while_there_is_something_to_train() -> None:
    harness = Harness()
    harness.wait(10)
    harness.rest(30)
    assert harness.record(TRAINS, (Activity.ROLLOUT, 0, 40), at=40) == [
        ("rollout", 0, 10),
        ("assist", 10, 30),
        ("rollout", 30, 40),
    ]


def test_help_goes_on_while_the_iteration_waits_trains_and_waits_again() -> None:
    harness = Harness()
    harness.wait(0)
    harness.assist.train([TRAINS], BEGAN + 10)
    harness.wait(20)
    spans = ((Activity.ROLLOUT, 0, 10), (Activity.TRAIN, 10, 20), (Activity.PREVIEW, 20, 25))
    assert harness.record(TRAINS, *spans, at=25) == [("assist", 0, 10), ("train", 10, 20), ("assist", 20, 25)]


def test_two_iterations_within_one_span_are_both_seen() -> None:
    harness = Harness()
    for began in (0, 20):
        harness.wait(began)
        harness.rest(began + 10)
    assert harness.record(TRAINS, (Activity.ROLLOUT, 5, 25), at=30) == [
        ("assist", 5, 10),
        ("rollout", 10, 20),
        ("assist", 20, 25),
    ]


def test_work_of_a_worker_that_never_trains_and_evaluations_are_never_help() -> None:
    harness = Harness()
    harness.wait(0)
    assert harness.record(ROLLS, (Activity.ROLLOUT, 0, 10), at=10) == [("rollout", 0, 10)]
    assert harness.record(TRAINS, (Activity.EVALUATION, 0, 10), at=10) == [("evaluation", 0, 10)]


def test_run_without_parts_records_no_help() -> None:
    harness = Harness()
    harness.assist.train([TRAINS], BEGAN)
    harness.rest(5)
    assert harness.record(TRAINS, (Activity.ROLLOUT, 0, 10), at=10) == [("rollout", 0, 10)]


def test_span_that_was_partly_reported_before_is_recorded_from_there() -> None:
    harness = Harness()
    harness.record(ROLLS, (Activity.ROLLOUT, 0, 10), at=10)
    assert harness.record(ROLLS, (Activity.ROLLOUT, 5, 8), (Activity.PREVIEW, 8, 14), at=14) == [("preview", 10, 14)]
