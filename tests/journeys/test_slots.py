"""Slots taken from a node: its other workers continue, and the slot has no worker until it is given back."""

from crew_story import SPOT, CrewStory
from story import slot_of

from spotlight.core.events import Accepted, WorkerJoined, WorkerLost
from spotlight.sim.fault_policy import Tempo

QUICK = Tempo(restart_s=0.5)


def test_taken_slot_is_empty_until_it_is_given_back_and_survivors_regroup():
    with CrewStory(tempo=QUICK) as story:
        *_, victim = story.until_crew(4)
        number = slot_of(victim)
        story.world.take_slot(SPOT, number)
        survivors = story.until_crew(3)
        assert victim not in survivors
        story.wait(10 * QUICK.restart_s + QUICK.start_s)
        assert victim in story.lost()
        assert number not in story.node.workers
        story.world.give_slot(SPOT, number)
        story.until(lambda: any(slot_of(event.worker) == number for event in story.recorded(WorkerJoined)[-1:]))
        story.end()


def test_taken_slot_has_no_worker_when_its_node_returns():
    with CrewStory(tempo=QUICK) as story:
        story.until_crew(4)
        story.world.take_slot(SPOT, 2)
        story.kill(SPOT)
        story.until(lambda: story.world.nodes.get(SPOT) is not None and len(story.node.workers) == 3)
        story.wait(10.0)
        assert sorted(story.node.workers) == [0, 1, 3]
        story.world.give_slot(SPOT, 2)
        story.until(lambda: len(story.node.workers) == 4)
        story.end()


def test_all_slots_of_a_node_taken_at_once_leave_the_work_to_others():
    with CrewStory(tempo=QUICK) as story:
        members = story.until_crew(4)
        for worker in members:
            story.world.take_slot(SPOT, slot_of(worker))
        story.until(lambda: {event.worker for event in story.recorded(WorkerLost)} >= set(members))
        before = len(story.recorded(Accepted))
        story.end()
        after = story.recorded(Accepted)[before:]
    assert after
    assert not {event.worker for event in after} & set(members)
