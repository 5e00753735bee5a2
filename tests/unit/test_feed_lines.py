"""What happened, in sentences: a line per record worth knowing, from that record alone."""

from story_journal import story

from spotlight.core.events import Accepted, Crewing, NodeLost, Reconnected, Record, Worked, WorkerLost
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Activity
from spotlight.surface.feed_lines import FeedKind, feed_line
from spotlight.surface.projections import FEED_KEPT, RunView

NODE, WORKER = NodeId("spot-1.2"), WorkerId("spot-1.2/0.1")


def line(event):
    found = feed_line(Record(7, 3.0, event))
    return None if found is None else (found.kind, found.text)


def test_losses_reconnections_and_regroups_are_told_apart():
    crews = ((WORKER, WorkerId("spot-1.2/1.1")),)
    assert line(NodeLost(node=NODE, cause="killed")) == (FeedKind.LOSS, "spot-1.2 lost: killed")
    assert line(NodeLost(node=NODE, cause="drained")) == (FeedKind.MACHINE, "spot-1.2 left: drained")
    assert line(WorkerLost(worker=WORKER, cause="exited")) is None
    assert line(WorkerLost(worker=WORKER, cause="killed")) == (
        FeedKind.LOSS,
        "worker spot-1.2/0.1 lost without notice: killed",
    )
    assert line(Reconnected(node=NODE, seconds=0.25)) == (FeedKind.MACHINE, "spot-1.2 connected again after 250 ms")
    assert line(Crewing(node=NODE, epoch=1, crews=crews, reason="demand", seconds=0.07)) == (
        FeedKind.REGROUP,
        "spot-1.2 regrouped to 2 in 70 ms: demand",
    )


def test_normal_operation_has_no_lines():
    assert line(Worked(worker=WORKER, activity=Activity.ROLLOUT, start=0.0, end=1.0)) is None
    assert line(Accepted(request="rollout/0/0/1", attempt=1, worker=WORKER, digest="d", reward=1.0)) is None


def test_view_keeps_the_newest_lines_of_its_journal():
    records = story(iterations=60)
    lines = [found for record in records if (found := feed_line(record))]
    assert len(lines) > FEED_KEPT + 100
    assert RunView.of(records).feed == lines[-FEED_KEPT:]
    assert [one.text for one in lines[:1]] == ["started: recipe words-nft, seed 7"]
