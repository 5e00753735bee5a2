"""A rollout whose worker is killed at a step boundary ends on another worker with the bits of an undisturbed one."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from flight_nursery import Order, Reply, serve
from fork_server import forked

STEPS = 10
SCENARIOS = ["ode", "sde"]


class Nursery:
    """One process that forks a worker for every order, so that the models are made once."""

    def __init__(self, store: Path) -> None:
        self.link, self.process = forked(serve, store)

    def order(self, **order: object) -> Reply:
        self.link.send(Order(**order))
        return self.link.recv()

    def killed_at(self, stop: int, **order: object) -> str:
        """The flight that a worker committed before it was killed."""
        reply = self.order(stop=stop, **order)
        assert reply.signal == signal.SIGKILL
        return reply.flight

    def finished(self, **order: object) -> tuple[str, int]:
        """Digest of the finished sample, and the steps that this worker took."""
        reply = self.order(**order)
        assert reply.signal == 0
        return reply.digest, reply.steps


@pytest.fixture(scope="module")
def nursery(tmp_path_factory) -> Iterator[Nursery]:
    started = Nursery(tmp_path_factory.mktemp("store"))
    yield started
    started.link.close()
    started.process.join(30)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rollout_killed_at_every_boundary_and_resumed_elsewhere_is_bit_identical(nursery, scenario):
    """The resuming worker has other neighbours at other steps than the killed one."""
    sample = {"model": "tiny", "scenario": scenario}
    digest, steps = nursery.finished(**sample)
    assert steps == STEPS
    for stop in range(1, STEPS):
        flight = nursery.killed_at(stop, **sample, neighbours=stop % 3)
        resumed = nursery.finished(**sample, flight=flight, neighbours=(stop + 1) % 3)
        assert resumed == (digest, STEPS - stop)


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_rollout_of_words_whose_every_worker_is_killed_after_one_step_is_bit_identical(nursery, scenario):
    sample = {"model": "words", "scenario": scenario}
    flight = None
    for stop in range(1, STEPS):
        flight = nursery.killed_at(stop, **sample, flight=flight, neighbours=stop % 2)
    assert nursery.finished(**sample, flight=flight) == (nursery.finished(**sample)[0], 1)


def test_scenarios_differ(nursery):
    """The window of the SDE draws noise; without it both would have the same digest."""
    ode, sde = (nursery.finished(model="tiny", scenario=scenario)[0] for scenario in SCENARIOS)
    assert ode != sde
