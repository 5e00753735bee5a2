"""Each bug planted here into the real classes makes the named test of crews fail.

The bugs are likely mistakes: a dropped check, a forgotten step. If a test here fails, the crew tests no longer detect
that bug.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import test_crew_layouts as layouts
import test_crews as losses

from spotlight.control.elastic.regroup import Regroup
from spotlight.node.crews import NodeCrews
from spotlight.node.membership import Membership
from spotlight.node.worker_core import WorkerCore
from spotlight.sim.sim_node import SimNode

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {}


def caught_by(test: Callable[[], None]) -> Callable[[Plant], Plant]:
    def register(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, test)
        return plant

    return register


@caught_by(lambda: losses.test_follower_killed_in_a_forward_leader_goes_on_with_the_survivors_from_the_same_step(0, 1))
def replan_after_a_death_ignored(patch: pytest.MonkeyPatch) -> None:
    """Survivors work alone until another event makes the agent decide."""
    decide = NodeCrews._decide
    patch.setattr(NodeCrews, "_decide", lambda self, why: None if "is gone" in why else decide(self, why))


@caught_by(layouts.test_worker_refuses_orders_of_an_old_token_and_stays_in_its_crew)
def token_check_dropped_in_the_worker(patch: pytest.MonkeyPatch) -> None:
    """The worker applies orders of any token."""
    apply = Membership.apply

    def unchecked(self: Any, order: Any) -> Any:
        self.token = order.token
        return apply(self, order)

    patch.setattr(Membership, "apply", unchecked)


@caught_by(layouts.test_agent_refuses_messages_of_an_old_token_and_nothing_changes)
def token_check_dropped_in_the_agent(patch: pytest.MonkeyPatch) -> None:
    """The agent accepts messages of any token as those of the live crew."""
    receive = Regroup.receive

    def unchecked(self: Regroup, worker: Any, message: Any, now: float) -> Any:
        live = self.token(worker)
        return receive(self, worker, message if live is None else msgspec.structs.replace(message, token=live), now)

    patch.setattr(Regroup, "receive", unchecked)


@caught_by(layouts.test_grant_that_crosses_the_order_to_follow_is_handed_back_and_made_elsewhere)
def crossing_grant_kept_by_a_follower(patch: pytest.MonkeyPatch) -> None:
    """A follower keeps a grant that crossed its order; it takes no steps of its own."""
    hand_back, admit = WorkerCore._hand_back, WorkerCore._admit

    def keep_grant(self: Any, grant: Any, blob: bytes) -> None:
        patch.setattr(WorkerCore, "_hand_back", lambda *_: None)
        admit(self, grant, blob)
        patch.setattr(WorkerCore, "_hand_back", hand_back)

    patch.setattr(WorkerCore, "_admit", keep_grant)


@caught_by(losses.test_follower_hung_in_a_forward_is_killed_by_name_and_the_crew_goes_on)
def hung_worker_spared(patch: pytest.MonkeyPatch) -> None:
    """The agent removes a hung worker but does not kill its process."""
    patch.setattr(SimNode, "kill_worker", lambda *_: None)


@caught_by(losses.test_imminent_notice_crew_disbands_at_the_boundary_and_no_step_is_lost)
def notice_not_sent_to_the_crews(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeCrews, "warned", lambda *_: None)


@caught_by(layouts.test_new_work_while_a_crew_serves_dissolves_it_and_every_slot_works)
def demand_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeCrews, "demand", lambda *_: None)


@caught_by(layouts.test_newcomer_joins_the_crew_once_it_holds_the_weights_and_the_crew_does_not_wait)
def weights_of_newcomers_not_checked(patch: pytest.MonkeyPatch) -> None:
    """Every worker counts as holding all weights of the node."""
    view = NodeCrews._view

    def view_with_all_weights(self: Any, worker: Any) -> Any:
        everything = frozenset().union(*(info.holds for info in self._members.values()))
        return replace(view(self, worker), holds=everything)

    patch.setattr(NodeCrews, "_view", view_with_all_weights)


@caught_by(losses.test_returning_slots_join_at_a_step_boundary_and_the_crew_grows)
def newcomer_not_joined(patch: pytest.MonkeyPatch) -> None:
    """Only the first worker of a slot joins the crews."""
    joined = Regroup.joined

    def ignore_newcomers(self: Regroup, worker: Any, now: float) -> Any:
        return joined(self, worker, now) if worker.endswith(".1") else []

    patch.setattr(Regroup, "joined", ignore_newcomers)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_makes_its_test_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, test = BUGS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test()
