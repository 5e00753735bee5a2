"""Flights over crews: the engine of the leader, the shared adapter, followers that receive its forwards."""

from collections.abc import Iterator, Sequence

import pytest
from parallel_ranks import Problem, Ranks

STEPS = 8
MEMBERS = ([0], [0, 1], [0, 2, 1], [0, 1, 2, 3], [0, 5, 4, 3, 2, 1], [0, 3], [0, 2, 3], [0])
"""Another crew for every step: degrees 1, 2, 3, 4, 6, 2, 3, 1."""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> Iterator[Ranks]:
    started = Ranks(6, tmp_path_factory.mktemp("crew"))
    started.all(range(6), "build", str(tmp_path_factory.mktemp("weights")))
    yield started
    started.end()


def form_crew(ranks: Ranks, members: Sequence[int]) -> None:
    assert ranks.form(members) == [len(members)] * len(members)
    assert ranks.all(members, "bind") == [len(members)] * len(members)


def finished_by(ranks: Ranks, crews: Sequence[Sequence[int]], guidance: float = 1.0) -> dict[int, str]:
    """Make three samples, step i by crews[i]; returns the digests of all that training would use."""
    ranks.call(crews[0][0], "admit", guidance)
    finished: dict[int, str] = {}
    for members in crews:
        form_crew(ranks, members)
        finished |= ranks.take_step(members)
    assert sorted(finished) == [0, 1, 2]
    return finished


@pytest.mark.parametrize("guidance", [pytest.param(1.0, marks=pytest.mark.slow), 3.0])
def test_flight_that_changes_degree_at_every_step_ends_bit_identical(ranks, guidance):
    assert finished_by(ranks, MEMBERS, guidance) == finished_by(ranks, [[0]] * STEPS, guidance)


def test_flight_that_changes_leader_and_degree_ends_bit_identical(ranks):
    """The first leader hands the flight over as bytes; one of its followers leads next."""
    undisturbed = finished_by(ranks, [[0]] * STEPS)
    ranks.call(0, "admit", 1.0)
    for members in ([0, 1, 2], [0, 1], [0], [0, 1, 2, 3]):
        form_crew(ranks, members)
        ranks.take_step(members)
    flight = ranks.call(0, "withdraw")
    ranks.call(3, "admit", 1.0, flight)
    finished: dict[int, str] = {}
    for members in ([3, 1], [3, 2, 1], [3], [3, 4]):
        form_crew(ranks, members)
        finished |= ranks.take_step(members)
    assert finished == {0: undisturbed[0]}
    ranks.call(3, "withdraw")


@pytest.mark.parametrize("leads", [pytest.param(False, marks=pytest.mark.slow), True])
def test_rank_killed_inside_any_exchange_of_a_step_changes_no_bit(ranks, tmp_path, leads):
    """A newcomer dies at the first exchange, the next one at the second, and so on, until one survives the step."""
    undisturbed = finished_by(ranks, [[0]] * STEPS)
    if not leads:
        ranks.call(0, "admit", 1.0)
    for killed in range(100):
        newcomer = (100 if leads else 200) + killed
        members = [newcomer, 0, 1] if leads else [0, 1, newcomer]
        ranks.start(newcomer)
        ranks.call(newcomer, "build", str(tmp_path))
        form_crew(ranks, members)
        if leads:
            ranks.call(newcomer, "admit", 1.0)
        ranks.call(newcomer, "die_inside", killed)
        replies = ranks.attempt_step(members)
        if newcomer in replies:
            break
        assert [replies[rank].kind for rank in (0, 1)] == ["CrewBroken", "CrewBroken"]
    assert killed >= 10, "a forward of words has ten exchanges: inputs, two per layer, outputs"
    ranks.call(newcomer, "die_inside", None)
    finished: dict[int, str] = {}
    for _ in range(STEPS - 1):
        finished |= ranks.take_step(members)
    assert finished == undisturbed
    ranks.kill(newcomer)


def test_noise_key_off_by_one_is_detected_as_different(ranks, tmp_path):
    """Control: samples whose window draws noise change, the ODE sample does not."""
    undisturbed = finished_by(ranks, [[0]] * STEPS)
    fresh = Ranks(1, tmp_path)
    try:
        fresh.call(0, "build", str(tmp_path / "weights"))
        fresh.call(0, "shift_noise")
        shifted = finished_by(fresh, [[0]] * STEPS)
    finally:
        fresh.end()
    assert [shifted[seed] == undisturbed[seed] for seed in (0, 1, 2)] == [False, True, False]


def test_follower_with_other_weights_refuses_and_the_leader_steps_on_alone(ranks, tmp_path):
    """The leader has not advanced, so the same samples end with the same bits."""
    undisturbed = finished_by(ranks, [[0]] * STEPS)
    ranks.call(5, "build", str(tmp_path / "altered"), True)
    ranks.call(0, "admit", 1.0)
    form_crew(ranks, [0, 5])
    ranks.send(0, "step")
    forward = ranks.reply(0)
    refusal = ranks.call(5, "follow", forward)
    assert refusal.kind == "WeightsError"
    assert forward.digest in refusal.message
    assert ranks.reply(0).kind == "CrewBroken"
    finished: dict[int, str] = {}
    for _ in range(STEPS):
        finished |= ranks.take_step([0])
    assert finished == undisturbed
    ranks.call(5, "build", str(tmp_path / "restored"))


def test_forward_of_an_old_epoch_is_refused_and_the_new_group_goes_on(ranks):
    ranks.call(0, "admit", 1.0)
    form_crew(ranks, [0, 1])
    ranks.send(0, "step")
    old = ranks.reply(0)
    ranks.call(1, "follow", old)
    while not isinstance(ranks.reply(0), dict):
        pass
    form_crew(ranks, [0, 1])
    assert ranks.call(1, "follow", old).kind == "StaleForward"
    assert not isinstance(ranks.take_step([0, 1]), Problem)
    ranks.call(0, "withdraw")
