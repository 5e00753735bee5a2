"""A reward that cannot score now: its pictures wait and are tried again, and other pictures are not held up."""

import asyncio
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from dispatch_stories import dispatcher_with

from spotlight.compute.rewards.combination import Verdict
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.errors import RewardUnavailable
from spotlight.core.types import NodeId, Prompt
from spotlight.core.work import SlotClass
from spotlight.node.judge import Judge
from spotlight.node.term_judge import LONGEST_WAIT_S, Scored
from spotlight.sim.virtual_loop import run_virtually

REWARDS = """
from spotlight.core.errors import RewardUnavailable

class Overloaded(RewardUnavailable):
    def __init__(self, code, host):
        super().__init__(f"{host} answered {code}")

def down(images, prompts):
    raise RewardUnavailable("nothing listens there")

def overloaded(images, prompts):
    raise Overloaded(503, "the far judge")
"""


@dataclass
class Endpoint:
    """Implements ScoringProcess; a picture is a number, which is its score. Each call takes a second."""

    down_until: float = 0.0
    broken: set[float] = field(default_factory=set)
    """Pictures that it can never score."""
    calls: list[tuple[float, tuple[float, ...]]] = field(default_factory=list)

    async def score(self, items: Sequence[float]) -> Scored:
        loop = asyncio.get_running_loop()
        self.calls.append((loop.time(), tuple(items)))
        await asyncio.sleep(1.0)
        if loop.time() < self.down_until or self.broken & set(items):
            raise RewardUnavailable("the endpoint is down")
        return Scored(Scores(total=np.array(items)), "endpoint 1")

    async def close(self) -> None:
        pass


def judged(endpoints: Sequence[Endpoint], pictures: Sequence[float], within_s: float):
    """Verdicts by picture within this time, and all reports of waiting pictures."""
    waits: list[m.RewardAwaited] = []
    verdicts: dict[float, Verdict] = {}

    async def sit() -> None:
        several = len(endpoints) > 1
        terms = [Term(name=f"r{number}", key=f"r{number}" if several else "") for number in range(len(endpoints))]
        pairs = [(term, [endpoint]) for term, endpoint in zip(terms, endpoints, strict=True)]
        judge = Judge[float](pairs, waits=waits.append)

        async def one(picture: float) -> None:
            verdicts[picture] = await judge.judge(picture)

        tasks = [asyncio.create_task(one(picture)) for picture in pictures]
        await asyncio.wait(tasks, timeout=within_s)
        for task in tasks:
            task.cancel()
        await judge.close()

    run_virtually(sit())
    return verdicts, waits


def test_pictures_wait_through_an_outage_and_all_are_scored_after_it():
    endpoint = Endpoint(down_until=500.0)
    verdicts, waits = judged([endpoint], [1.0, 2.0, 3.0], within_s=500.0 + 2 * LONGEST_WAIT_S)
    assert {picture: verdict.score.reward for picture, verdict in verdicts.items()} == {1.0: 1.0, 2.0: 2.0, 3.0: 3.0}
    assert not any(verdict.problem for verdict in verdicts.values())
    assert max(awaited.pictures for awaited in waits) == 3
    assert waits[0].problem == "the endpoint is down"
    assert waits[-1].pictures == 0


def test_waits_of_a_picture_double_up_to_a_bound():
    endpoint = Endpoint(down_until=1e6)
    judged([endpoint], [1.0], within_s=10 * LONGEST_WAIT_S)
    times = [at for at, _ in endpoint.calls]
    gaps = [round(after - before - 1.0, 3) for before, after in pairwise(times)]
    assert gaps[0] * 4 == gaps[2]
    assert gaps == sorted(gaps)
    assert max(gaps) == gaps[-1] == LONGEST_WAIT_S


def test_one_picture_that_is_never_scored_holds_up_no_other():
    endpoint = Endpoint(broken={2.0})
    verdicts, waits = judged([endpoint], [1.0, 2.0, 3.0], within_s=1000.0)
    assert sorted(verdicts) == [1.0, 3.0]
    assert waits[-1].pictures == 1


def test_new_picture_is_served_before_those_that_are_tried_again():
    endpoint = Endpoint(broken={float(number) for number in range(64)})
    done: list[float] = []

    async def sit() -> None:
        judge = Judge[float]([(Term(name="r", batch=1), [endpoint])])
        waiting = [asyncio.create_task(judge.judge(float(number))) for number in range(64)]
        await asyncio.sleep(300.0)
        before = asyncio.get_running_loop().time()
        await judge.judge(100.0)
        done.append(asyncio.get_running_loop().time() - before)
        for task in waiting:
            task.cancel()
        await judge.close()

    run_virtually(sit())
    # The call in progress, and its own.
    assert done[0] <= 2.1


def test_outage_of_one_of_two_rewards_costs_the_other_no_second_call():
    down, up = Endpoint(down_until=20.0), Endpoint()
    verdicts, waits = judged([down, up], [1.0, 2.0], within_s=200.0)
    assert [verdicts[picture].score.reward for picture in (1.0, 2.0)] == [2.0, 4.0]
    assert [pictures for _, pictures in up.calls] == [(1.0, 2.0)]
    assert {awaited.reward for awaited in waits} == {"r0"}


@pytest.mark.parametrize(
    ("name", "words"), [("down", "nothing listens there"), ("overloaded", "far judge answered 503")]
)
def test_unavailability_crosses_the_process_boundary_also_as_a_class_of_the_rewards_own_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str
):
    (tmp_path / "unavailable_rewards.py").write_text(textwrap.dedent(REWARDS))
    monkeypatch.syspath_prepend(tmp_path)
    picture = np.zeros((4, 4, 3), np.uint8)
    with RewardPool(1) as pool, pytest.raises(RewardUnavailable, match=words):
        pool.score(f"unavailable_rewards:{name}", [picture], [Prompt(text="x")])


def test_controller_says_what_it_waits_for_and_notes_outages_without_filling_the_journal():
    dispatcher, _ = dispatcher_with(SlotClass.SPOT)
    (node,) = dispatcher.directory.nodes
    hub = Hub(dispatcher, RealClock(), lambda outgoing: None)

    def report(pictures: int, problem: str = "") -> None:
        awaited = m.RewardAwaited(reward="far", pictures=pictures, problem=problem)
        hub.receive(NodeId(node), m.Envelope(None, awaited))

    report(1, "no route")
    report(7, "no route")
    assert hub.waiting_for() == "the reward 'far' to score 7 pictures (no route)"
    report(0)
    assert hub.waiting_for() == ""
    for _ in range(40):
        report(1, "no route")
        report(0)
    assert [problem.split("(")[1].split(":")[0] for problem in dispatcher.setbacks.problems] == [
        "outage 1", "outage 2", "outage 4", "outage 8", "outage 16", "outage 32",
    ]  # fmt: skip
    report(3, "no route")
    hub.node_lost(NodeId(node), "gone")
    assert hub.waiting_for() == ""
