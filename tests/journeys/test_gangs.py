"""Several training ranks: whatever dies, the weights are those of an undisturbed run, and survivors repeat no step."""

from itertools import product

import pytest
from story import Story

from spotlight.core import messages as m
from spotlight.core.events import Restored, RunStopped, StepCommitted, WorkerJoined, WorkerLost
from spotlight.core.types import WorkerId
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.sim_trainer import SimTrainer, Used

CLUSTER = {"commit_every": 2, "heartbeat_s": 1.0, "silence_s": 8.0, "start_s": 20.0, "slots": 3, "gang": 3}
RANKS = [WorkerId(f"reserved-1.1/{slot}.1") for slot in range(3)]
POINTS = (
    *(CrashPoint.FORMED, CrashPoint.RESTORING, CrashPoint.ACCUMULATING, CrashPoint.EXCHANGED, CrashPoint.STEPPED),
    *(CrashPoint.REPLY_SENT, CrashPoint.PUBLISHING, CrashPoint.SAVING),
)


def undisturbed() -> str:
    with Story(cluster=CLUSTER) as story:
        story.end()
        return story.theta


@pytest.mark.parametrize(("point", "rank"), product(POINTS, (0, 2)), ids=lambda value: str(value))
def test_rank_that_dies_at_any_point_changes_no_bit_and_takes_no_committed_step_back(
    point: CrashPoint, rank: int
) -> None:
    expected = undisturbed()
    with Story(cluster=CLUSTER) as story:
        story.crash_at(point, RANKS[rank])
        story.end()
        assert [event.worker for event in story.recorded(WorkerLost)] == [RANKS[rank]]
        assert not story.recorded(Restored), "a rank that lived on held every step"
        assert story.theta == expected


def test_two_ranks_that_die_together_leave_the_third_with_every_step() -> None:
    expected = undisturbed()
    with Story(cluster=CLUSTER) as story:
        story.until(lambda: story.recorded(StepCommitted))
        for rank in (0, 1):
            story.crash_at(CrashPoint.ACCUMULATING, RANKS[rank])
        story.end()
        assert len(story.recorded(WorkerLost)) == 2
        assert not story.recorded(Restored)
        assert story.theta == expected


def test_whole_gang_that_dies_returns_to_the_newest_checkpoint() -> None:
    expected = undisturbed()
    with Story(cluster=CLUSTER) as story:
        story.until(lambda: story.recorded(StepCommitted))
        story.kill("reserved-1")
        story.end()
        assert [event.step for event in story.recorded(Restored)] == [0]
        assert story.theta == expected


def test_rank_that_never_comes_stops_the_run_with_its_slot_and_its_log() -> None:
    with Story(cluster=CLUSTER) as story:
        story.world.nodes["reserved-1"].take(2)
        story.expected_reason = "nothing has progressed"
        story.until(lambda: story.recorded(RunStopped))
        (stopped,) = story.recorded(RunStopped)
        assert "1 of 3 training ranks (reserved-1/2; see logs/reserved-1.*-2.*.log)" in stopped.reason


def test_elastic_gang_trains_on_with_fewer_ranks_and_grows_when_one_returns(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    read = SimTrainer.read

    def counted(self: SimTrainer, order: m.Train) -> list[Used]:
        sizes.append(order.ranks)
        return read(self, order)

    monkeypatch.setattr(SimTrainer, "read", counted)
    with Story(cluster={**CLUSTER, "gang_elastic": True}, deterministic=False, iterations=6) as story:
        story.until(lambda: story.recorded(StepCommitted))
        story.world.nodes["reserved-1"].take(1)
        story.until(lambda: len(story.recorded(StepCommitted)) >= 3)
        story.world.nodes["reserved-1"].give(1)
        story.end()
        assert sizes.count(2) >= 4
        assert sizes[-1] == 3
        assert not story.recorded(Restored)
        assert [event.worker for event in story.recorded(WorkerJoined)].count(WorkerId("reserved-1.1/1.2")) == 1
