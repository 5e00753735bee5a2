"""Storms over the regroup machine: after any faults on a node all live workers serve, and no old token returns.

Each seed draws the number of slots, the faults and their times. After the last fault every live worker must serve
within a bound. Each bug planted below must be caught by a seed.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from regroup_world import InvariantBroken, World

from spotlight.control.elastic import breakups, regroup
from spotlight.control.elastic.actions import Refuse, Send
from spotlight.control.elastic.breakups import Breakups
from spotlight.control.elastic.crew_life import Crew, CrewState
from spotlight.control.elastic.formation import Formation
from spotlight.control.elastic.regroup import Regroup
from spotlight.core.crew_messages import Disband

COVERAGE_SEEDS = range(60)
BUG_SEEDS = range(60)
"""Seeds tried until one catches the bug."""
STORM_S = 25.0
CALM_S = 120.0
"""Longer than the longest back-off of a pair and a step boundary."""


def kill(world: World) -> None:
    names = [name for name, member in sorted(world.members.items()) if member.alive]
    if len(names) > 1:
        world.die(world.rng.choice(names))


def kill_two(world: World) -> None:
    kill(world)
    kill(world)


def kill_while_forming(world: World) -> None:
    forming = [crew for crew in world.regroup.layout if len(crew) > 1 and crew not in world.regroup.crews]
    if forming:
        world.die(world.rng.choice(forming[0]))


def kill_leader(world: World) -> None:
    if world.regroup.crews:
        world.die(world.regroup.crews[0][0])


def lose_all(world: World) -> None:
    for name, member in sorted(world.members.items()):
        if member.alive:
            world.die(name)
    world.after(1.0, world.join)
    world.after(1.5, world.join)


def stop(world: World) -> None:
    names = [name for name, member in sorted(world.members.items()) if member.alive and not member.stopped]
    if names:
        world.stop(world.rng.choice(names), world.rng.uniform(0.05, 8.0))


def stop_in_a_crew(world: World) -> None:
    """Stop a member of a serving crew for longer than a step may take."""
    if world.regroup.crews:
        world.stop(world.rng.choice(world.rng.choice(world.regroup.crews)), world.rng.uniform(4.0, 12.0))


def notice(world: World) -> None:
    if len(world.regroup.alive) > 1:
        name = world.rng.choice(world.regroup.alive)
        seconds = world.rng.uniform(0.1, 5.0)
        world.act(world.regroup.noticed(name, world.now + seconds, world.now))
        world.after(seconds, lambda: world.die(name))


def join(world: World) -> None:
    if len(world.regroup.alive) < 6:
        world.join()


def change_layout(world: World) -> None:
    world.act(world.regroup.wish(world.any_layout(), "another layout", world.now))


def replay(world: World) -> None:
    """Repeat old messages of tokens that are no longer live; each must be refused."""
    old = [(name, message) for name, message in world.received if world.regroup.token(name) != message.token]
    for name, message in world.rng.sample(old, min(5, len(old))):
        actions = world.regroup.receive(name, message, world.now)
        world.check(all(isinstance(action, Refuse) for action in actions), f"{name}'s old {message} led to {actions}")
        world.act(actions)


def change_weights(world: World) -> None:
    """Let one member hold other weights under the same name for 2 s."""
    member = world.members[world.rng.choice(sorted(world.members))]
    member.digest = "bad"
    world.after(2.0, lambda: setattr(member, "digest", "good"))


def raise_errors(world: World) -> None:
    world.errors = 0.3
    world.after(1.0, lambda: setattr(world, "errors", 0.0))


FAULTS = (
    *(kill, kill_two, kill_while_forming, kill_leader, lose_all, stop, stop_in_a_crew, stop_in_a_crew, notice),
    *(join, join, change_layout, change_layout, replay, replay, change_weights, raise_errors),
)


def run_storm(seed: int) -> tuple[World, Counter[str]]:
    """Run a storm, then wait without faults until all live workers serve."""
    world = World(seed)
    tried: Counter[str] = Counter()
    for _ in range(world.rng.randint(2, 5)):
        world.join()
    for _ in range(world.rng.randint(3, 25)):
        fault = world.rng.choice(FAULTS)
        tried[fault.__name__] += 1
        world.at(world.rng.uniform(0.0, STORM_S), lambda fault=fault: fault(world))
    world.run(STORM_S + 10.0)
    alive = tuple(sorted(name for name, member in world.members.items() if member.alive))
    world.layout = lambda: (alive,)
    world.act(world.regroup.wish((alive,), "calm", world.now))
    calm_at = world.now + CALM_S
    while world.now < calm_at and not (world.regroup.is_settled and world.regroup.crews == (alive,)):
        world.run(world.now + 1.0)
    world.run(world.now + 5.0)
    world.check(world.regroup.is_settled, "regrouping is not settled long after the last fault")
    world.check(world.regroup.alive == alive, f"{alive} are alive, the machine has {world.regroup.alive}")
    wanted = (alive,) if len(alive) > 1 else ()
    world.check(world.regroup.crews == wanted, f"{wanted} should serve, {world.regroup.crews} do")
    for name in alive:
        member = world.members[name]
        token = member.group.token if member.group is not None else None
        world.check(token == world.regroup.token(name), f"{name} is in {token}, not {world.regroup.token(name)}")
    return world, tried


def storm_of(seed: int) -> tuple[World, Counter[str]]:
    """Run a storm whose failure names its seed."""
    try:
        return run_storm(seed)
    except InvariantBroken as broken:
        raise InvariantBroken(f"seed {seed}: {broken}") from None


def run_storms(seeds: range) -> None:
    for seed in seeds:
        storm_of(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(60, 240, 30))
def test_all_live_workers_serve_after_the_storm_of_more_seeds(first: int) -> None:
    run_storms(range(first, first + 30))


def test_all_live_workers_serve_after_storms_that_try_every_fault_and_reach_every_state() -> None:
    tried: Counter[str] = Counter()
    received: Counter[str] = Counter()
    kills = refused = 0
    for seed in COVERAGE_SEEDS:
        world, faults = storm_of(seed)
        tried += faults
        received.update(type(message).__name__ for _, message in world.received)
        kills += len(world.killed)
        refused += world.regroup.refused
    assert sorted(tried) == sorted({fault.__name__ for fault in FAULTS})
    assert {"Prepared", "Formed", "Broke", "Disbanded", "Forward", "ForwardDone"} == set(received)
    assert kills > len(COVERAGE_SEEDS) / 4
    assert refused > len(COVERAGE_SEEDS) / 4


def test_storm_depends_on_its_seed_alone() -> None:
    assert run_storm(7)[0].trace == run_storm(7)[0].trace


# -- planted bugs ------------------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__] = plant
    return plant


@bug
def epoch_not_incremented(patch: pytest.MonkeyPatch) -> None:
    prepare = Formation.prepare

    def reuse_epoch(self: Formation, *arguments: Any) -> Any:
        if self.epoch > 1 and self.epoch % 3 == 0:
            self.epoch -= 1
        return prepare(self, *arguments)

    patch.setattr(Formation, "prepare", reuse_epoch)


@bug
def token_check_dropped(patch: pytest.MonkeyPatch) -> None:
    """Messages of any token are accepted as those of the live crew."""
    receive = Regroup.receive

    def unchecked(self: Regroup, worker: Any, message: Any, now: float) -> Any:
        live = self.token(worker)
        return receive(self, worker, msgspec.structs.replace(message, token=live) if live is not None else message, now)

    patch.setattr(Regroup, "receive", unchecked)


@bug
def formed_before_all_are_prepared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(regroup, "disagreement", lambda members, answers: None)
    silent = Crew.silent

    def skip_one(self: Crew) -> Any:
        return silent(self)[1:] if self.state is CrewState.PREPARING else silent(self)

    patch.setattr(Crew, "silent", skip_one)


@bug
def weights_not_compared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(regroup, "disagreement", lambda members, answers: None)


@bug
def survivor_forgotten(patch: pytest.MonkeyPatch) -> None:
    take_orders = Breakups.take_orders
    patch.setattr(Breakups, "take_orders", lambda self, now: take_orders(self, now)[:1])


@bug
def dead_worker_kept(patch: pytest.MonkeyPatch) -> None:
    lose = Formation.lose

    def keep(self: Formation, worker: Any, why: str, now: float) -> Any:
        slot = self.slots[worker]
        actions = lose(self, worker, why, now)
        slot.crew = None
        self.slots[worker] = slot
        return actions

    patch.setattr(Formation, "lose", keep)


@bug
def hang_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Breakups, "overdue", lambda *_: [])


@bug
def whole_crew_disbanded_at_once(patch: pytest.MonkeyPatch) -> None:
    """Followers leave while their leader is in a step."""
    drain = Formation.drain

    def drain_all(self: Formation, crew: Crew, why: str, now: float) -> Any:
        orders = [Send(follower, Disband(token=crew.token)) for follower in crew.followers]
        return [*drain(self, crew, why, now), *orders]

    patch.setattr(Formation, "drain", drain_all)


@bug
def every_silent_member_suspected(patch: pytest.MonkeyPatch) -> None:
    all_silent = lambda silent, *_: sorted(silent)  # noqa: E731
    patch.setattr(breakups, "suspects", all_silent)
    patch.setattr(regroup, "suspects", all_silent)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    with pytest.raises(InvariantBroken):
        run_storms(BUG_SEEDS)
