"""Slot time by kind in the journal of a run: help of the trainer, publishing and loading, members of a crew."""

from typing import Any

from crew_story import CrewStory
from market_stories import bubbles
from story import Story
from test_parts import LONG

from spotlight.control.market.bubbles import Bubbles
from spotlight.control.market.occupancy import Tenure
from spotlight.core.events import Worked
from spotlight.core.journal import read
from spotlight.core.work import Activity


def bubbles_of_run(**pipeline: Any) -> Bubbles:
    with Story(**LONG, pipeline=pipeline) as story:
        story.end()
        return bubbles(read(story.folder.journal))


def test_rollouts_of_a_trainer_are_help_while_its_iteration_has_something_to_train() -> None:
    found = bubbles_of_run(gap=True, tag=True)
    assert found.seconds[Tenure.RESERVED][Activity.ASSIST] > 0
    assert Activity.ROLLOUT not in found.seconds[Tenure.RESERVED]
    assert Activity.ASSIST not in found.seconds[Tenure.SPOT]


def test_trainer_that_never_helps_is_idle_instead() -> None:
    helping, waiting = (bubbles_of_run(gap=True, tag=tag).seconds[Tenure.RESERVED] for tag in (True, False))
    assert Activity.ASSIST not in waiting
    assert waiting[Activity.IDLE] > helping[Activity.IDLE]


def test_rollouts_of_a_trainer_that_alternate_with_training_are_not_help() -> None:
    found = bubbles_of_run(gap=False)
    assert found.seconds[Tenure.RESERVED][Activity.ROLLOUT] > 0
    assert Activity.ASSIST not in found.seconds[Tenure.RESERVED]


def test_trainer_publishes_weights_and_all_slots_load_them() -> None:
    found = bubbles_of_run(gap=False)
    assert {Activity.PUBLISH, Activity.LOAD} <= set(found.seconds[Tenure.RESERVED])
    assert Activity.LOAD in found.seconds[Tenure.SPOT]
    assert Activity.PUBLISH not in found.seconds[Tenure.SPOT]
    done = [one for one in found.iterations if one.end is not None]
    assert all(Activity.PUBLISH in one.seconds[Tenure.RESERVED] for one in done)


def test_followers_of_a_crew_roll_out_as_long_as_their_leader() -> None:
    with CrewStory(slots=4) as story:
        leader, *followers = story.until_crew(4)
        story.end()
        busy = {
            worker: sum(event.end - event.start for event in story.recorded(Worked) if event.worker == worker)
            for worker in (leader, *followers)
        }
    assert all(busy[follower] > 0.5 * busy[leader] for follower in followers)
