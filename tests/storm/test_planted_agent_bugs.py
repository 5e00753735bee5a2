"""Each bug planted here into the agent's decisions is caught by the storm of a seed in a small range."""

from typing import Any

import pytest
from storm_bugs import Bugs

from spotlight.core.crew_messages import CopyDamaged
from spotlight.node.agent_core import WITH_CREWS, WITHOUT_CREWS, AgentCore
from spotlight.node.announcements import Announcements
from spotlight.node.leases import Leases
from spotlight.node.slots import WorkerSlots

BUGS = Bugs()
caught_by = BUGS.caught_by


@caught_by(12)
def file_deleted_while_a_worker_may_load_it(patch: pytest.MonkeyPatch) -> None:
    sweep = Announcements._sweep

    def impatient(self: Any) -> list[str]:
        for retired in self._retired:
            retired.waits_for.clear()
        return sweep(self)

    patch.setattr(Announcements, "_sweep", impatient)


@caught_by(0)
def newborn_worker_receives_no_weights(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Announcements, "current", lambda self: ())


@caught_by(0)
def leases_not_recorded(patch: pytest.MonkeyPatch) -> None:
    """Every result is unscored, because its prompt is unknown."""
    patch.setattr(Leases, "observe", lambda *_: None)


@caught_by(0)
def slot_empty_after_its_first_worker(patch: pytest.MonkeyPatch) -> None:
    start = WorkerSlots._start
    patch.setattr(WorkerSlots, "_start", lambda self, slot: None if slot.lives else start(self, slot))


@caught_by(1)
def grant_relayed_to_every_worker(patch: pytest.MonkeyPatch) -> None:
    relay = AgentCore._relay
    patch.setattr(AgentCore, "_relay", lambda self, worker, message, blob: relay(self, None, message, blob))


@caught_by(0)
def verdict_not_added(patch: pytest.MonkeyPatch) -> None:
    """A result leaves without the score that its reward gave."""

    def without(self: Any, scoring: Any, verdict: Any) -> None:
        self._effects.report(scoring.worker, scoring.result)

    patch.setattr(AgentCore, "_report_result", without)


@caught_by(1)
def damaged_copy_never_replaced(patch: pytest.MonkeyPatch) -> None:
    """A worker that finds the node's copy of weights damaged waits for another one for ever."""
    patch.setitem(WITHOUT_CREWS, CopyDamaged, lambda self, worker, message, blob: None)
    patch.setitem(WITH_CREWS, CopyDamaged, lambda self, worker, message, blob: None)


@pytest.mark.parametrize("name", BUGS)
def test_bug_planted_in_the_agent_is_caught_by_some_seed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert BUGS.caught(name, monkeypatch)
