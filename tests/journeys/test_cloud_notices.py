"""Every case of the metadata protocols, from the service to the scheduler, timed by the virtual clock."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cloud_story import CloudStory
from metadata_server import ACTION, EVENTS, PREEMPTED, hang, reset, status
from story import COMMIT_EVERY

from spotlight.control.scheduler.state import Standing
from spotlight.core.events import NoticeGiven, NoticeWithdrawn, Released, WorkerLost
from spotlight.core.work import NoticeKind, ReleaseReason
from spotlight.node.notices import gcp
from spotlight.node.notices.metadata_http import REQUEST_S
from spotlight.node.notices.watch import RETRY_FIRST_S

LONG = {"iterations": 40, "rollout": {"prompts": 2, "group_size": 3, "steps": 12}}
WATCHED_S, POLLED_S = 1.0, 2.0
"""Longest time from a visible notice to the scheduler, where the service answers a wait and where it is polled."""
PATHS = {"aws": ACTION, "gcp": PREEMPTED, "azure": EVENTS}
WITHIN_S = {"aws": POLLED_S, "gcp": WATCHED_S, "azure": POLLED_S}
PHASES = (0.0, 0.35, 0.7)
"""Seconds after a poll at which a notice becomes visible."""


def announce(story: CloudStory, cloud: str, seconds: float = 25) -> None:
    acts: dict[str, Callable[[], Any]] = {
        "aws": lambda: story.cloud.interrupt(seconds),
        "gcp": lambda: story.cloud.set_key(PREEMPTED, "TRUE"),
        "azure": lambda: story.cloud.schedule(seconds),
    }
    story.does(acts[cloud])


def withdraw(story: CloudStory, cloud: str) -> None:
    acts: dict[str, Callable[[], Any]] = {
        "aws": lambda: setattr(story.cloud, "interruption", None),
        "gcp": lambda: story.cloud.set_key(PREEMPTED, "FALSE"),
        "azure": story.cloud.set_events,
    }
    story.does(acts[cloud])


@pytest.mark.parametrize("phase_s", PHASES)
@pytest.mark.parametrize("cloud", PATHS)
def test_notice_and_its_withdrawal_reach_the_scheduler_in_time(cloud, phase_s, monkeypatch):
    with CloudStory([cloud], monkeypatch, **LONG) as story:
        story.wait(3.0 + phase_s)
        assert story.standing() is Standing.SERVING
        announce(story, cloud)
        assert story.seconds_until(Standing.LEAVING) <= WITHIN_S[cloud]
        (given,) = story.recorded(NoticeGiven)
        assert 20 < given.seconds <= 31
        story.wait(phase_s)
        withdraw(story, cloud)
        assert story.seconds_until(Standing.SERVING) <= WITHIN_S[cloud]
        assert len(story.recorded(NoticeWithdrawn)) == 1


def test_file_is_a_notice_within_two_polls_and_its_removal_a_withdrawal(tmp_path: Path, monkeypatch):
    path = tmp_path / "gone"
    with CloudStory([f"file:{path}"], monkeypatch, **LONG) as story:
        story.wait(3.3)
        path.write_text("20")
        assert story.seconds_until(Standing.LEAVING) <= POLLED_S
        path.unlink()
        assert story.seconds_until(Standing.SERVING) <= POLLED_S


def test_recommendation_leaves_previews_only_until_it_passes(monkeypatch):
    with CloudStory(["aws"], monkeypatch, **LONG) as story:
        story.wait(3.0)
        story.does(story.cloud.recommend)
        assert story.seconds_until(Standing.PREVIEWS_ONLY) <= POLLED_S
        announce(story, "aws", 100)
        assert story.seconds_until(Standing.LEAVING) <= POLLED_S
        withdraw(story, "aws")
        assert story.seconds_until(Standing.PREVIEWS_ONLY) <= POLLED_S, "the recommendation is still in force"
        story.cloud.rebalance = None
        assert story.seconds_until(Standing.SERVING) <= POLLED_S
        kinds = [(event.kind, event.seconds is None) for event in story.recorded(NoticeGiven)]
        advisory, imminent = (NoticeKind.ADVISORY, True), (NoticeKind.IMMINENT, False)
        assert kinds == [advisory, imminent, advisory]


def test_token_that_expires_delays_no_notice(monkeypatch):
    with CloudStory(["aws"], monkeypatch, **LONG) as story:
        story.wait(3.0)
        story.cloud.expire_tokens()
        announce(story, "aws")
        assert story.seconds_until(Standing.LEAVING) <= POLLED_S
        assert 401 in story.cloud.statuses(ACTION)


@pytest.mark.parametrize("fault", [status(503), status(429), reset])
@pytest.mark.parametrize("cloud", PATHS)
def test_burst_of_faults_delays_a_notice_by_its_retries_alone(cloud, fault, monkeypatch):
    with CloudStory([cloud], monkeypatch, **LONG) as story:
        story.wait(3.0)
        story.cloud.fail(fault, times=3, path=PATHS[cloud])
        announce(story, cloud)
        retries_s = RETRY_FIRST_S * (1 + 2 + 4)
        assert story.seconds_until(Standing.LEAVING) <= WITHIN_S[cloud] + retries_s
        assert len(story.cloud.faults) <= (3 if cloud == "gcp" else 0), "an open long poll is answered before them"


@pytest.mark.parametrize("cloud", PATHS)
def test_notice_stays_in_force_while_its_service_is_away(cloud, monkeypatch):
    with CloudStory([cloud], monkeypatch, **LONG) as story:
        story.wait(3.0)
        announce(story, cloud)
        story.seconds_until(Standing.LEAVING)
        story.cloud.fail(status(500), times=4, path=PATHS[cloud])
        story.wait(9.0)
        assert story.standing() is Standing.LEAVING
        assert story.recorded(NoticeWithdrawn) == []


def test_long_poll_that_hangs_hides_a_notice_for_its_time_limit_alone(monkeypatch):
    with CloudStory(["gcp"], monkeypatch, **LONG) as story:
        story.cloud.fail(hang, path=f"{PREEMPTED}?wait_for_change")
        story.wait(3.0)
        announce(story, "gcp")
        assert story.seconds_until(Standing.LEAVING) <= gcp.WAIT_S + REQUEST_S + WATCHED_S


def test_two_sources_at_once_are_one_notice_with_the_nearer_deadline_and_one_withdrawal_leaves_the_other(
    tmp_path: Path, monkeypatch
):
    path = tmp_path / "gone"
    with CloudStory(["aws", f"file:{path}"], monkeypatch, **LONG) as story:
        story.wait(3.0)
        announce(story, "aws", 100)
        story.seconds_until(Standing.LEAVING)
        path.write_text("20")
        story.until(lambda: len(story.recorded(NoticeGiven)) == 2)
        assert story.recorded(NoticeGiven)[-1].seconds == pytest.approx(20, abs=0.5)
        path.unlink()
        story.until(lambda: len(story.recorded(NoticeGiven)) == 3)
        assert story.recorded(NoticeGiven)[-1].seconds > 80
        assert story.standing() is Standing.LEAVING
        withdraw(story, "aws")
        assert story.seconds_until(Standing.SERVING) <= POLLED_S
        assert len(story.recorded(NoticeWithdrawn)) == 1


def test_kill_earlier_than_promised_costs_no_more_than_the_steps_since_the_last_commit(monkeypatch):
    with CloudStory(["aws"], monkeypatch, iterations=3, rollout=LONG["rollout"]) as story:
        story.wait(3.0)
        worker = story.worker("spot-1")
        announce(story, "aws", 110)
        story.seconds_until(Standing.LEAVING)
        story.wait(1.0)
        story.kill_machine()
        story.until(lambda: story.recorded(WorkerLost, worker=worker))
        assert story.recorded(WorkerLost, worker=worker)[0].noticed
        assert all(event.redone <= COMMIT_EVERY for event in story.recorded(Released, reason=ReleaseReason.LOST))
        story.end()


def test_kill_without_notice_is_recorded_as_such_and_loses_no_sample(monkeypatch):
    with CloudStory(["azure"], monkeypatch, iterations=3, rollout=LONG["rollout"]) as story:
        story.wait(3.0)
        worker = story.worker("spot-1")
        story.kill_machine()
        story.until(lambda: story.recorded(WorkerLost, worker=worker))
        assert not story.recorded(WorkerLost, worker=worker)[0].noticed
        story.end()


def test_kill_after_a_withdrawn_notice_is_one_without_notice(monkeypatch):
    with CloudStory(["gcp"], monkeypatch, iterations=3, rollout=LONG["rollout"]) as story:
        story.wait(2.0)
        worker = story.worker("spot-1")
        announce(story, "gcp")
        story.seconds_until(Standing.LEAVING)
        withdraw(story, "gcp")
        story.seconds_until(Standing.SERVING)
        story.kill_machine()
        story.until(lambda: story.recorded(WorkerLost, worker=worker))
        assert not story.recorded(WorkerLost, worker=worker)[0].noticed
        story.end()


@pytest.mark.parametrize("skew_s", [-300.0, 300.0])
@pytest.mark.parametrize("sends_date", [True, False])
def test_service_whose_clock_is_minutes_off_gives_a_deadline_within_its_documented_warning(
    skew_s, sends_date, monkeypatch
):
    with CloudStory(["aws"], monkeypatch, iterations=3, rollout=LONG["rollout"]) as story:
        story.cloud.skew_s, story.cloud.sends_date = skew_s, sends_date
        story.wait(2.0)
        announce(story, "aws", 60)
        story.seconds_until(Standing.LEAVING)
        (given,) = story.recorded(NoticeGiven)
        if sends_date:
            assert given.seconds == pytest.approx(60, abs=3)
        assert 0 <= given.seconds <= 120
        withdraw(story, "aws")
        story.end()
