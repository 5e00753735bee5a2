"""A node is paid for as soon as it joins and works once it has booted; a drained node loses no work."""

import asyncio

import msgspec
import pytest
from story import Story

from spotlight.core.events import ExplorationClosed, NodeJoined, NodeLost, Released, WorkerJoined, WorkerLost
from spotlight.core.journal import read
from spotlight.core.types import NodeId
from spotlight.core.work import Activity, SlotClass
from spotlight.sim.fault_policy import Tempo
from spotlight.sim.simulate import SimPool
from spotlight.surface.projections import RunView

BOOT_S, START_S = 10.0, 2.0


def test_node_is_paid_for_while_it_boots_and_its_workers_start_after_that():
    story = Story(spot=1, tempo=Tempo(start_s=START_S))
    story.specs[1] = msgspec.structs.replace(story.specs[1], boot_s=BOOT_S, price="aws-p5-h100")
    with story:
        story.end()
        records = list(read(story.folder.journal))
    came = next(r.at for r in records if isinstance(r.event, NodeJoined) and r.event.slot_class is SlotClass.SPOT)
    works = next(r.at for r in records if isinstance(r.event, WorkerJoined) and r.event.slot_class is SlotClass.SPOT)
    assert BOOT_S + START_S <= works - came < BOOT_S + START_S + 1.0
    (spot,) = (tally for tally in RunView.of(records).meter.tallies() if tally.slot_class is SlotClass.SPOT)
    assert spot.seconds[Activity.START] == works - came


def test_drained_node_hands_back_its_work_and_is_not_counted_as_lost():
    with Story(spot=2) as story:
        worker = "spot-1.1/0.1"
        story.until(lambda: story.hub.dispatcher.ledger.leases_of(worker))
        pool = SimPool(story.world)
        draining = asyncio.ensure_future(pool.drain_node(NodeId("spot-1.1")))
        story.until(lambda: draining.done() and story.recorded(NodeLost, node="spot-1.1"))
        assert [lost.cause for lost in story.recorded(WorkerLost, worker=worker)] == ["exited"]
        assert all(released.redone == 0 for released in story.recorded(Released))
        story.end()
        view = RunView.of(read(story.folder.journal))
    assert view.timeline.preemptions == []
    assert story.recorded(NodeJoined, node="spot-1.2") == []


def test_node_that_is_drained_while_it_boots_leaves_at_once():
    story = Story(spot=1)
    story.specs[1] = msgspec.structs.replace(story.specs[1], boot_s=1e6)
    with story:
        story.until(lambda: story.recorded(NodeJoined, node="spot-1.1"))
        draining = asyncio.ensure_future(SimPool(story.world).drain_node(NodeId("spot-1.1")))
        story.until(lambda: draining.done() and story.recorded(NodeLost, node="spot-1.1"))
        story.end()
    assert story.recorded(WorkerJoined, node="spot-1.1") == []


def test_previews_that_are_cut_off_record_their_discarded_steps():
    explore = {"enabled": "on", "plan": "fixed", "seeds": 12, "steps": 5, "audit_share": 0.01, "overrun": 0.0}
    with Story(spot=1, tempo=Tempo(train_s=3.0, heartbeat_s=0.5), deterministic=False, explore=explore) as story:
        story.end()
        closed = story.recorded(ExplorationClosed)
        view = RunView.of(read(story.folder.journal))
    cut = [event for event in closed if event.discarded]
    assert cut
    assert all(0 < event.discarded_steps < 5 * event.discarded for event in cut)
    discarded = sum(event.discarded_steps for event in cut)
    used = 5 * sum(event.finished for event in closed)
    lost = sum(tally.seconds.get(Activity.LOST, 0.0) for tally in view.meter.tallies())
    previewed = sum(tally.seconds.get(Activity.PREVIEW, 0.0) for tally in view.meter.tallies())
    assert lost / (lost + previewed) == pytest.approx(discarded / (discarded + used))
