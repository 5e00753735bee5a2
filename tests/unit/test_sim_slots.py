"""Slots that come and go one by one: how they are replayed, and what fixed crews do with the remaining ones."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.elastic.fixed_crews import CrewSlot, FixedCrews, Idled, Relaunched, replay
from spotlight.control.market.traces import Happening, Trace, TraceEvent
from spotlight.core.errors import ConfigError
from spotlight.core.types import WorkerId
from spotlight.sim.fault_policy import NoFaults
from spotlight.sim.message_trace import MessageTrace
from spotlight.sim.sim_world import SimWorld
from spotlight.sim.storage import SimStorage
from spotlight.sim.virtual_loop import run_virtually

SIZE, LEGAL = 4, (1, 2, 4, 8)
UP, NOTICE, KILL = Happening.UP, Happening.NOTICE, Happening.KILL


def crews_after(kind, *changes, size=SIZE):
    """A crew policy after these slots of one node were lost and came back; all were up before."""

    async def scenario():
        crews = kind(SimWorld(NoFaults(), SimStorage(), MessageTrace(), is_exact=True), size, LEGAL)
        for number in range(size):
            crews.lost(CrewSlot("spot-1", number))
        for number in range(size):
            crews.back(CrewSlot("spot-1", number))
        for happening, number in changes:
            (crews.back if happening is UP else crews.lost)(CrewSlot("spot-1", number))
        return crews

    return run_virtually(scenario())


def used(crews: FixedCrews):
    return [slot.number for slot in crews.slots_used()]


class SlotLog:
    def __init__(self):
        self.lines = []

    def lost(self, slot):
        self.lines.append((asyncio.get_running_loop().time(), "lost", *slot))

    def back(self, slot):
        self.lines.append((asyncio.get_running_loop().time(), "back", *slot))


def test_replay_reports_each_slot_at_its_time_and_all_as_lost_before():
    log = SlotLog()
    events = [(5.0, "n/0", UP), (5.0, "n/1", UP), (7.0, "n/1", NOTICE), (9.0, "n/1", KILL), (30.0, "n/1", UP)]
    run_virtually(replay(Trace("t", tuple(TraceEvent(*event) for event in events)), log))
    assert log.lines == [
        (0.0, "lost", "n", 0),
        (0.0, "lost", "n", 1),
        (5.0, "back", "n", 0),
        (5.0, "back", "n", 1),
        (9.0, "lost", "n", 1),
        (30.0, "back", "n", 1),
    ]


@pytest.mark.parametrize("name", ["spot-1", "spot-1/", "/3", "spot-1/x"])
def test_replay_of_a_name_without_a_slot_is_refused(name):
    with pytest.raises(ConfigError, match="names no slot"):
        run_virtually(replay(Trace("t", (TraceEvent(0.0, name, UP),)), SlotLog()))


def test_slot_of_a_worker_is_the_same_in_every_life():
    lives = [WorkerId("spot-1.1/3.1"), WorkerId("spot-1.1/3.7"), WorkerId("spot-1.4/3.1")]
    assert {CrewSlot.of_worker(worker) for worker in lives} == {CrewSlot("spot-1", 3)}


def test_relaunched_crew_that_loses_a_member_restarts_at_the_largest_legal_degree():
    assert used(crews_after(Relaunched, (KILL, 1))) == [0, 2]


def test_relaunched_crew_that_loses_a_slot_it_does_not_use_goes_on():
    crews = crews_after(Relaunched, (KILL, 1), (KILL, 3))
    assert used(crews) == [0, 2]
    assert crews.degree(WorkerId("spot-1.1/0.5")) == 2


def test_relaunched_crew_grows_when_a_return_makes_a_larger_one_legal():
    assert used(crews_after(Relaunched, (KILL, 1), (KILL, 3), (UP, 3))) == [0, 2]
    assert used(crews_after(Relaunched, (KILL, 1), (KILL, 3), (UP, 3), (UP, 1))) == [0, 1, 2, 3]


def test_idle_crew_waits_for_its_last_member():
    assert used(crews_after(Idled, (KILL, 1))) == []
    assert used(crews_after(Idled, (KILL, 1), (KILL, 2), (UP, 1))) == []
    assert used(crews_after(Idled, (KILL, 1), (KILL, 2), (UP, 1), (UP, 2))) == [0, 1, 2, 3]


@given(kind=st.sampled_from([Relaunched, Idled]), slots=st.lists(st.integers(0, SIZE - 1), max_size=12))
@settings(max_examples=30)
def test_fixed_crew_never_works_with_a_slot_that_is_away(kind, slots):
    away, changes = set(), []
    for number in slots:
        changes.append((UP if number in away else KILL, number))
        away ^= {number}
    present = set(range(SIZE)) - away
    working = used(crews_after(kind, *changes))
    assert set(working) <= present
    if kind is Idled:
        assert len(working) == (0 if away else SIZE)
    else:
        assert len(working) == max((degree for degree in LEGAL if degree <= len(present)), default=0)
