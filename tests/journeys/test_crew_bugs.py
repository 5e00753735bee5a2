"""The stories of crews have teeth: each bug planted here into the real classes makes the story beside it fail.

A bug is the kind of mistake that the code is most likely to grow: a check dropped, a step forgotten. If one of these
tests fails, the stories have gone blind to it, whatever else they say.
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
from spotlight.sim.crew_member import SimMembership
from spotlight.sim.sim_node import SimNode
from spotlight.sim.sim_worker import SimWorker

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, tuple[Plant, Callable[[], None]]] = {}


def caught_by(story: Callable[[], None]) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        BUGS[plant.__name__] = (plant, story)
        return plant

    return keep


@caught_by(lambda: losses.test_follower_killed_in_a_forward_leader_goes_on_with_the_survivors_from_the_same_step(0, 1))
def replan_after_a_death_ignored(patch: pytest.MonkeyPatch) -> None:
    """Survivors stand alone until something else makes the agent think."""
    decide = NodeCrews._decide
    patch.setattr(NodeCrews, "_decide", lambda self, why: None if "is gone" in why else decide(self, why))


@caught_by(layouts.test_orders_of_an_old_token_worker_refuses_them_and_stays_in_its_crew)
def token_check_dropped_in_the_worker(patch: pytest.MonkeyPatch) -> None:
    """Whatever is ordered is taken for an order of the newest token."""
    apply = SimMembership.apply

    async def lax(self: Any, order: Any, seconds: float) -> None:
        self._token = order.token
        await apply(self, order, seconds)

    patch.setattr(SimMembership, "apply", lax)


@caught_by(layouts.test_words_of_an_old_token_agent_refuses_them_and_nothing_changes)
def token_check_dropped_in_the_agent(patch: pytest.MonkeyPatch) -> None:
    """Whatever is said is taken for a word of the live crew."""
    receive = Regroup.receive

    def lax(self: Regroup, worker: Any, word: Any, now: float) -> Any:
        live = self.token(worker)
        return receive(self, worker, word if live is None else msgspec.structs.replace(word, token=live), now)

    patch.setattr(Regroup, "receive", lax)


@caught_by(layouts.test_grant_that_crosses_the_order_to_follow_is_handed_back_and_made_elsewhere)
def crossing_grant_kept_by_a_follower(patch: pytest.MonkeyPatch) -> None:
    """What was granted before the controller knew stays with the follower, which takes no steps of its own."""
    hand_back, take = SimWorker._hand_back, SimWorker._take

    def greedy(self: Any, grant: Any, blob: bytes) -> None:
        patch.setattr(SimWorker, "_hand_back", lambda *_: None)
        take(self, grant, blob)
        patch.setattr(SimWorker, "_hand_back", hand_back)

    patch.setattr(SimWorker, "_take", greedy)


@caught_by(losses.test_follower_hung_in_a_forward_is_killed_by_name_and_the_crew_goes_on)
def hung_worker_spared(patch: pytest.MonkeyPatch) -> None:
    """The agent gives a hung worker up, but leaves its process alone."""
    patch.setattr(SimNode, "kill_worker", lambda *_: None)


@caught_by(losses.test_imminent_notice_crew_disbands_at_the_boundary_and_no_step_is_lost)
def notice_not_told_to_the_crews(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeCrews, "warned", lambda *_: None)


@caught_by(layouts.test_new_work_while_a_crew_serves_dissolves_it_and_every_slot_works)
def demand_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(NodeCrews, "demand", lambda *_: None)


@caught_by(layouts.test_newcomer_without_the_weights_is_not_taken_in_and_keeps_nobody_waiting_until_it_holds_them)
def weights_of_newcomers_taken_for_granted(patch: pytest.MonkeyPatch) -> None:
    """Whoever is there is taken to hold what anybody holds."""
    view = NodeCrews._view

    def trusting(self: Any, worker: Any, now: float) -> Any:
        everything = frozenset().union(*(info.holds for info in self._members.values()))
        return replace(view(self, worker, now), holds=everything)

    patch.setattr(NodeCrews, "_view", trusting)


@caught_by(losses.test_returning_slots_join_at_a_step_boundary_and_the_crew_grows)
def newcomer_not_introduced(patch: pytest.MonkeyPatch) -> None:
    """Only those that were there at the start are ever seated."""
    joined = Regroup.joined

    def shy(self: Regroup, worker: Any, now: float) -> Any:
        return joined(self, worker, now) if worker.endswith(".1") else []

    patch.setattr(Regroup, "joined", shy)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_makes_its_story_fail(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, story = BUGS[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        story()
