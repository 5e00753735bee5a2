"""The judge: every picture gets a verdict, even if its reward raises, dies or hangs."""

import asyncio
import logging
import math
import os
import signal
import textwrap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from reward_children import reward_processes

from spotlight.compute.rewards.combination import Verdict
from spotlight.compute.rewards.config import Term
from spotlight.core.types import Prompt
from spotlight.node.judge import Judge, Picture
from spotlight.node.reward_process import RewardLog, RewardProcess

PATIENT_S, IMPATIENT_S = 20.0, 1.0
"""The first is long enough for a process to start on a busy machine; the second passes only if it hangs."""
PROMPT = Prompt(text="a word")
GOOD, POISON = 10, 200
"""Brightness of a picture that is scored, and of one that the reward cannot take."""
REWARDS = """
import os
import time
from pathlib import Path
import numpy as np
from spotlight.compute.rewards.protocol import Scores

class Brightness:
    name, version = "brightness", "1"
    def score(self, images, prompts):
        for image in images:
            if image.mean() > 100:
                self.refuse()
        return Scores(total=np.array([image.mean() for image in images]))
    def refuse(self):
        raise ValueError("too bright")

class Plain(Brightness):
    def refuse(self):
        pass

class Dying(Brightness):
    def refuse(self):
        os._exit(9)

class Hanging(Brightness):
    def refuse(self):
        time.sleep(3600)

class Contrary(Dying):
    def score(self, images, prompts):
        return Scores(total=-super().score(images, prompts).total)

class Faint(Brightness):
    def refuse(self):
        marker = Path(__file__).with_name("fainted")
        if not marker.exists():
            marker.touch()
            os._exit(9)
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strange_rewards.py").write_text(textwrap.dedent(REWARDS))
    monkeypatch.syspath_prepend(tmp_path)


async def verdicts_on(judge: Judge[Picture], brightness: Sequence[int]) -> list[Verdict]:
    """Verdicts on pictures that arrive together."""
    images = [np.full((8, 8, 3), value, np.uint8) for value in brightness]
    return await asyncio.gather(*(judge.judge(Picture(image, PROMPT)) for image in images))


def judged(
    reward: str, brightness: Sequence[int], timeout_s: float = PATIENT_S, killed_before: int = 0
) -> list[Verdict]:
    """The verdicts; the idle reward process is first killed `killed_before` times."""

    async def sit() -> list[Verdict]:
        term = Term(name=f"strange_rewards:{reward}", timeout_s=timeout_s)
        judge = Judge([(term, [RewardProcess(term)])], RewardLog("node.log"))
        try:
            for _ in range(killed_before):
                await verdicts_on(judge, [GOOD])
                kill_reward_processes()
            return await verdicts_on(judge, brightness)
        finally:
            await judge.close()

    return asyncio.run(sit())


def kill_reward_processes() -> None:
    """Kill the reward processes of this test; each has ended when this returns."""
    children = reward_processes()
    assert children
    for child in children:
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        child.join()


@pytest.mark.parametrize(
    ("reward", "problem"),
    [
        ("Brightness", "too bright"),
        ("Dying", "died without an error"),
        pytest.param("Hanging", "gave no answer within 20 s", marks=pytest.mark.slow),
    ],
)
def test_picture_that_the_reward_fails_at_is_unscored_with_its_reason_and_the_others_are_scored(reward, problem):
    first, poisoned, last = judged(reward, [GOOD, POISON, GOOD + 1])
    assert (first.score.reward, last.score.reward) == (GOOD, GOOD + 1)
    assert math.isnan(poisoned.score.reward)
    assert problem in poisoned.problem
    assert "traceback is in node.log" in poisoned.problem
    assert not first.problem + last.problem


def test_traceback_of_a_reward_that_raises_is_logged_with_the_line_that_raised(caplog):
    caplog.set_level(logging.WARNING, "spotlight.judge")
    judged("Brightness", [POISON])
    assert 'raise ValueError("too bright")' in caplog.text


def test_picture_whose_reward_process_died_once_is_scored_by_the_next_process():
    (verdict,) = judged("Faint", [POISON])
    assert verdict.score.reward == POISON
    assert not verdict.problem


def test_pictures_after_the_idle_reward_process_was_killed_twice_are_all_scored():
    verdicts = judged("Brightness", range(GOOD, GOOD + 40), killed_before=2)
    assert [verdict.score.reward for verdict in verdicts] == list(range(GOOD, GOOD + 40))
    assert not any(verdict.problem for verdict in verdicts)


def test_reward_that_hangs_at_everything_is_given_up_after_two_pictures():
    verdicts = judged("Hanging", [POISON] * 12, IMPATIENT_S)
    assert len(verdicts) == 12
    assert all("gave no answer" in verdict.problem for verdict in verdicts)


def judged_twice(judge: str, batches: Sequence[Sequence[tuple[int, bool]]]) -> tuple[list[list[Verdict]], list[str]]:
    """Verdicts on (brightness, whether the second judge scores it) by batch, and the reports about that judge."""
    reports: list[str] = []

    async def sit() -> list[list[Verdict]]:
        term = Term(name="strange_rewards:Plain", timeout_s=PATIENT_S)
        process = RewardProcess(term, f"strange_rewards:{judge}", reports.append)
        sitting = Judge([(term, [process])], RewardLog("node.log"))
        try:
            found = []
            for batch in batches:
                pictures = [
                    Picture(np.full((8, 8, 3), value, np.uint8), PROMPT, is_judged) for value, is_judged in batch
                ]
                found.append(await asyncio.gather(*map(sitting.judge, pictures)))
            return found
        finally:
            await sitting.close()

    return asyncio.run(sit()), reports


def test_second_judge_scores_the_pictures_chosen_for_it_and_changes_no_reward():
    (verdicts,), reports = judged_twice("Contrary", [[(GOOD, True), (GOOD + 1, False), (GOOD + 2, True)]])
    assert [verdict.score.reward for verdict in verdicts] == [GOOD, GOOD + 1, GOOD + 2]
    assert [verdict.score.components for verdict in verdicts] == [{"judge": -GOOD}, {}, {"judge": -GOOD - 2}]
    assert not reports


def test_second_judge_that_kills_its_process_costs_no_reward_and_is_not_used_again():
    batches, reports = judged_twice("Contrary", [[(GOOD, True), (POISON, True)], [(GOOD, True)]])
    scores = [verdict.score for batch in batches for verdict in batch]
    assert [score.reward for score in scores] == [GOOD, POISON, GOOD]
    assert not any(score.components for score in scores)
    (report,) = reports
    assert "the second judge 'strange_rewards:Contrary' gave no score for 2 held-out pictures" in report
    assert "died without an error" in report


def test_second_judge_that_raises_at_one_batch_scores_the_next():
    batches, reports = judged_twice("Brightness", [[(POISON, True)], [(GOOD, True)]])
    (poisoned,), (good,) = batches
    assert (poisoned.score.reward, poisoned.score.components) == (POISON, {})
    assert (good.score.reward, good.score.components) == (GOOD, {"judge": GOOD})
    assert "too bright" in reports[0]
