"""Storms over the regroup machine: whatever goes wrong on a node, its workers end up serving, and nothing old returns.

Each seed draws the number of slots, the faults and when they come. After the last fault everything alive must serve
within a bound. The bugs planted below are each caught, or the storms have gone blind.
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

SEEDS = range(120)
MORE_SEEDS = range(120, 240)
COVERAGE_SEEDS = range(60)
BUG_SEEDS = range(60)
"""Storms end at the first that catches the bug."""
STORMY_S = 25.0
CALM_S = 120.0
"""The longest back-off of a pair, a step boundary and then some."""


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
    """A member of a serving crew stops for longer than a step may take."""
    if world.regroup.crews:
        world.stop(world.rng.choice(world.rng.choice(world.regroup.crews)), world.rng.uniform(4.0, 12.0))


def notice(world: World) -> None:
    if len(world.regroup.alive) > 1:
        name = world.rng.choice(world.regroup.alive)
        seconds = world.rng.uniform(0.1, 5.0)
        world.act(world.regroup.noticed(name, world.now + seconds, world.now))
        world.after(seconds, lambda: world.die(name))


def come(world: World) -> None:
    if len(world.regroup.alive) < 6:
        world.join()


def change_mind(world: World) -> None:
    world.act(world.regroup.wish(world.any_layout(), "another mind", world.now))


def replay(world: World) -> None:
    """A zombie says again what it once said, of a token that is not its live one."""
    old = [(name, word) for name, word in world.said if world.regroup.token(name) != word.token]
    for name, word in world.rng.sample(old, min(5, len(old))):
        actions = world.regroup.receive(name, word, world.now)
        world.check(all(isinstance(action, Refuse) for action in actions), f"{name}'s old {word} led to {actions}")
        world.act(actions)


def skew(world: World) -> None:
    """Somebody holds other weights under the same name for a while."""
    member = world.members[world.rng.choice(sorted(world.members))]
    member.digest = "bad"
    world.after(2.0, lambda: setattr(member, "digest", "good"))


def err(world: World) -> None:
    world.errors = 0.3
    world.after(1.0, lambda: setattr(world, "errors", 0.0))


FAULTS = (
    *(kill, kill_two, kill_while_forming, kill_leader, lose_all, stop, stop_in_a_crew, stop_in_a_crew, notice),
    *(come, come, change_mind, change_mind, replay, replay, skew, err),
)


def weather(seed: int) -> tuple[World, Counter[str]]:
    """A storm, then calm in which all must come to serve."""
    world = World(seed)
    tried: Counter[str] = Counter()
    for _ in range(world.rng.randint(2, 5)):
        world.join()
    for _ in range(world.rng.randint(3, 25)):
        fault = world.rng.choice(FAULTS)
        tried[fault.__name__] += 1
        world.at(world.rng.uniform(0.0, STORMY_S), lambda fault=fault: fault(world))
    world.run(STORMY_S + 10.0)
    everybody = tuple(sorted(name for name, member in world.members.items() if member.alive))
    world.layout = lambda: (everybody,)
    world.act(world.regroup.wish((everybody,), "calm", world.now))
    calm_at = world.now + CALM_S
    while world.now < calm_at and not (world.regroup.is_settled and world.regroup.crews == (everybody,)):
        world.run(world.now + 1.0)
    world.run(world.now + 5.0)
    world.check(world.regroup.is_settled, "something is still under way long after the last fault")
    world.check(world.regroup.alive == everybody, f"{everybody} live, the machine knows {world.regroup.alive}")
    wanted = (everybody,) if len(everybody) > 1 else ()
    world.check(world.regroup.crews == wanted, f"{wanted} should serve, {world.regroup.crews} do")
    for name in everybody:
        member = world.members[name]
        token = member.group.token if member.group is not None else None
        world.check(token == world.regroup.token(name), f"{name} is in {token}, not {world.regroup.token(name)}")
    return world, tried


def weather_all(seeds: range) -> None:
    for seed in seeds:
        try:
            weather(seed)
        except InvariantBroken as broken:
            raise InvariantBroken(f"seed {seed}: {broken}") from None


@pytest.mark.parametrize("first", [*SEEDS[::40], *(pytest.param(n, marks=pytest.mark.slow) for n in MORE_SEEDS[::40])])
def test_storm_of_a_seed_leaves_everybody_alive_serving(first: int) -> None:
    weather_all(range(first, first + 40))


def test_storms_try_every_fault_and_reach_every_state() -> None:
    tried: Counter[str] = Counter()
    said: Counter[str] = Counter()
    kills = refused = 0
    for seed in COVERAGE_SEEDS:
        world, faults = weather(seed)
        tried += faults
        said.update(type(word).__name__ for _, word in world.said)
        kills += len(world.killed)
        refused += world.regroup.refused
    assert sorted(tried) == sorted({fault.__name__ for fault in FAULTS})
    assert {"Prepared", "Formed", "Broke", "Disbanded", "Forward", "ForwardDone"} == set(said)
    assert kills > len(COVERAGE_SEEDS) / 4
    assert refused > len(COVERAGE_SEEDS) / 4


def test_storm_depends_on_its_seed_alone() -> None:
    assert weather(7)[0].trace == weather(7)[0].trace


# -- the storms have teeth ---------------------------------------------------------------------------------------------

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: dict[str, Plant] = {}


def bug(plant: Plant) -> Plant:
    BUGS[plant.__name__] = plant
    return plant


@bug
def epoch_not_incremented(patch: pytest.MonkeyPatch) -> None:
    prepare = Formation.prepare

    def stale(self: Formation, *arguments: Any) -> Any:
        if self.epoch > 1 and self.epoch % 3 == 0:
            self.epoch -= 1
        return prepare(self, *arguments)

    patch.setattr(Formation, "prepare", stale)


@bug
def token_check_dropped(patch: pytest.MonkeyPatch) -> None:
    """Whatever a member says is taken to be about its live crew."""
    receive = Regroup.receive

    def lax(self: Regroup, worker: Any, word: Any, now: float) -> Any:
        live = self.token(worker)
        return receive(self, worker, msgspec.structs.replace(word, token=live) if live is not None else word, now)

    patch.setattr(Regroup, "receive", lax)


@bug
def formed_before_all_are_prepared(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(regroup, "disagreement", lambda members, answers: None)
    silent = Crew.silent

    def hasty(self: Crew) -> Any:
        return silent(self)[1:] if self.state is CrewState.PREPARING else silent(self)

    patch.setattr(Crew, "silent", hasty)


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
def everybody_disbanded_at_once(patch: pytest.MonkeyPatch) -> None:
    """Followers leave while their leader is in a step."""
    drain = Formation.drain

    def rash(self: Formation, crew: Crew, why: str, now: float) -> Any:
        orders = [Send(follower, Disband(token=crew.token)) for follower in crew.followers]
        return [*drain(self, crew, why, now), *orders]

    patch.setattr(Formation, "drain", rash)


@bug
def everybody_silent_blamed(patch: pytest.MonkeyPatch) -> None:
    everybody = lambda silent, *_: sorted(silent)  # noqa: E731
    patch.setattr(breakups, "suspects", everybody)
    patch.setattr(regroup, "suspects", everybody)


@pytest.mark.parametrize("name", sorted(BUGS))
def test_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)
    with pytest.raises(InvariantBroken):
        weather_all(BUG_SEEDS)
