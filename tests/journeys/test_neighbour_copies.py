"""A worker that joins a node copies the weights from a neighbour, and loads them from the store if that fails."""

from collections.abc import Iterator

import pytest
from crew_story import CrewStory

from spotlight.core.events import Holding, Record, Worked, WorkerJoined, WorkerLost
from spotlight.core.journal import read
from spotlight.core.types import WorkerId
from spotlight.core.work import Activity
from spotlight.node.loading_core import PATIENCE_S
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo

COPY_S, LOAD_S, RESTART_S = 0.03, 0.4, 0.5
TEMPO = Tempo(load_s=LOAD_S, start_s=1.0, restart_s=RESTART_S)


@pytest.fixture
def story() -> Iterator[CrewStory]:
    with CrewStory(slots=2, tempo=TEMPO) as story:
        usual = story.policy.pace

        def paced(*worker):
            pace = usual(*worker)
            pace.copy_s = COPY_S
            return pace

        story.policy.pace = paced
        yield story


def replaced(story: CrewStory) -> tuple[WorkerId, WorkerId]:
    """Kill one of two workers that hold both sets; return its neighbour and its successor."""
    neighbour, victim, successor = (WorkerId(f"spot-1.1/{process}") for process in ("0.1", "1.1", "1.2"))
    story.until(lambda: all(len(story.recorded(Holding, worker=one)) >= 2 for one in (neighbour, victim)))
    story.wait(LOAD_S)
    story.kill_workers(victim)
    return neighbour, successor


def load_s(story: CrewStory, worker: WorkerId) -> float:
    """Seconds from a worker's Hello until it holds its first set."""
    story.until(lambda: story.recorded(Holding, worker=worker))
    times = {type(each.event): each.at for each in reversed([*read(story.folder.journal)]) if _is_of(each, worker)}
    return times[Holding] - times[WorkerJoined]


def _is_of(record: Record, worker: WorkerId) -> bool:
    return isinstance(record.event, Holding | WorkerJoined) and record.event.worker == worker


def test_worker_that_joins_copies_from_a_neighbour_and_is_charged_for_the_copy(story):
    _, newcomer = replaced(story)
    waited = load_s(story, newcomer)
    assert COPY_S <= waited < LOAD_S
    story.end()
    loads = [event for event in story.recorded(Worked, worker=newcomer) if event.activity is Activity.LOAD]
    assert loads[0].end - loads[0].start == pytest.approx(2 * COPY_S)


@pytest.mark.parametrize(
    ("point", "least_s", "most_s"),
    [
        (CrashPoint.OFFERING, PATIENCE_S, PATIENCE_S + 2 * LOAD_S),
        (CrashPoint.OFFERED, LOAD_S, PATIENCE_S),
    ],
)
def test_neighbour_that_dies_around_its_offer_costs_a_wait_and_the_store_is_used(story, point, least_s, most_s):
    neighbour, newcomer = replaced(story)
    story.crash_at(point, neighbour)
    assert least_s <= load_s(story, newcomer) <= most_s
    assert {lost.worker for lost in story.recorded(WorkerLost)} >= {neighbour}
    story.end()


def test_worker_that_dies_during_its_copy_leaves_its_neighbour_unharmed(story):
    neighbour, newcomer = replaced(story)
    story.crash_at(CrashPoint.COPYING, newcomer)
    story.until(lambda: story.recorded(WorkerLost, worker=newcomer))
    story.end()
    assert not story.recorded(WorkerLost, worker=neighbour)
