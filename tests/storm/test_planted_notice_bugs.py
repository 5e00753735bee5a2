"""Each bug planted here into the handling of preemption notices is caught by the storm of a seed in a small range."""

from collections.abc import Callable
from typing import Any

import pytest
from storm_bugs import Bugs

from spotlight.control.dispatch import Dispatcher
from spotlight.control.node_notices import NodeNotices
from spotlight.control.scheduler import pulls as serving
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.scheduler.state import Standing
from spotlight.node.notices.joined import JoinedNotices

BUGS = Bugs()
caught_by = BUGS.caught_by


@caught_by(6)
def lease_to_a_warned_worker(patch: pytest.MonkeyPatch) -> None:
    """An advisory notice is ignored."""
    patch.setitem(serving.RANKS, Standing.PREVIEWS_ONLY, serving.ALL_RANKS)


@caught_by(4)
def lease_past_the_deadline(patch: pytest.MonkeyPatch) -> None:
    """Work is leased without a check that it fits before the deadline."""
    patch.setattr(serving.notices, "fits", lambda *_: True)


@caught_by(6)
def withdrawal_ignored(patch: pytest.MonkeyPatch) -> None:
    """A worker whose notice is withdrawn stays without work."""
    warn = Scheduler.warn
    patch.setattr(Scheduler, "warn", lambda self, worker, kind, *rest: kind and warn(self, worker, kind, *rest))


@caught_by(6)
def withdrawal_of_one_source_ends_the_notices_of_all(patch: pytest.MonkeyPatch) -> None:
    update = JoinedNotices.update

    def forgetting(self: Any, notice: Any) -> Any:
        if notice.withdrawn:
            self._by_source.clear()
        return update(self, notice)

    patch.setattr(JoinedNotices, "update", forgetting)


@caught_by(6)
def notice_forgotten_for_a_worker_that_joins_under_it(patch: pytest.MonkeyPatch) -> None:
    """The scheduler gives a new worker of a node that may only preview every kind of work."""
    hello = Dispatcher._hello

    def forgetting(self: Any, *message: Any) -> None:
        with patch.context() as within:
            within.setattr(NodeNotices, "joined", lambda *_: None)
            hello(self, *message)

    patch.setattr(Dispatcher, "_hello", forgetting)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_of_notices_is_caught_by_some_seed(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("caught by", BUGS.caught(name, monkeypatch))
