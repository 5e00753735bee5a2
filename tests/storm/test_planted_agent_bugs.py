"""Each bug planted here into the agent's decisions is caught by the storm of a seed in a small range."""

from typing import Any

import pytest
from storm_bugs import Bugs

from spotlight.core.crew_messages import CopyDamaged
from spotlight.node.agent_core import WITH_CREWS, WITHOUT_CREWS, AgentCore
from spotlight.node.announcements import Announcements
from spotlight.node.leases import Leases
from spotlight.node.slots import WorkerSlots

FIRST = (0, 1, 5, 12)
SEEDS = (*FIRST, *(seed for seed in range(60) if seed not in FIRST))
BUGS = Bugs()
bug = BUGS.add


@bug
def file_deleted_while_a_worker_may_load_it(patch: pytest.MonkeyPatch) -> None:
    sweep = Announcements._sweep

    def impatient(self: Any) -> list[str]:
        for retired in self._retired:
            retired.waits_for.clear()
        return sweep(self)

    patch.setattr(Announcements, "_sweep", impatient)


@bug
def newborn_worker_receives_no_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Announcements, "current", lambda self: ())


@bug
def leases_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Every result is unscored, because its prompt is unknown."""
    patch.setattr(Leases, "observe", lambda *_: None)


@bug
def slot_empty_after_its_first_worker(patch: pytest.MonkeyPatch) -> None:
    start = WorkerSlots._start
    patch.setattr(WorkerSlots, "_start", lambda self, slot: None if slot.lives else start(self, slot))


@bug
def grant_relayed_to_every_worker(patch: pytest.MonkeyPatch) -> None:
    relay = AgentCore._relay
    patch.setattr(AgentCore, "_relay", lambda self, worker, message, blob: relay(self, None, message, blob))


@bug
def verdict_not_added(patch: pytest.MonkeyPatch) -> None:
    """A result leaves without the score that its reward gave."""

    def without(self: Any, scoring: Any, verdict: Any) -> None:
        self._effects.report(scoring.worker, scoring.result)

    patch.setattr(AgentCore, "_report_result", without)


@bug
def damaged_copy_never_replaced(patch: pytest.MonkeyPatch) -> None:
    """A worker that finds the node's copy of weights damaged waits for another one for ever."""
    patch.setitem(WITHOUT_CREWS, CopyDamaged, lambda self, worker, message, blob: None)
    patch.setitem(WITH_CREWS, CopyDamaged, lambda self, worker, message, blob: None)


@pytest.mark.parametrize("name", BUGS)
def test_bug_planted_in_the_agent_is_caught_by_some_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BUGS.caught(name, monkeypatch, SEEDS)
