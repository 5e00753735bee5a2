"""Previews beside the last rollouts and beside the fetch of new weights: what a run does at which time."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from test_simulate import LONG_FETCH, PROFILE, config, run

from spotlight.control.profiles import Profile
from spotlight.core.events import Compared, ExplorationClosed, Holding, IterationDone, Planned, Record, Worked
from spotlight.core.journal import read
from spotlight.core.work import Activity, Policy
from spotlight.folder import RunFolder

LONG_PREVIEWS = ("pipeline.gap=true", "explore.plan=fixed", "explore.overrun=10", "explore.seeds=96", "eval.every=100")
"""Previews that are awaited for many seconds after training."""


def records(folder: Path, setup: str, changes: Sequence[str], profile: Profile = PROFILE) -> list[Record]:
    run(config(setup, changes), folder, profile)
    return list(read(RunFolder(folder).journal))


def times(found: Sequence[Record], kind: type[Planned | Compared | IterationDone]) -> dict[int, float]:
    """Time of the event of this kind by iteration."""
    return {record.event.iteration: record.at for record in found if isinstance(record.event, kind)}


def spans(found: Sequence[Record], node: str, *activities: Activity) -> Iterator[Worked]:
    events = (record.event for record in found)
    return (e for e in events if isinstance(e, Worked) and e.worker.startswith(node) and e.activity in activities)


@pytest.mark.parametrize(
    ("changes", "is_early"),
    [
        (("explore.plan=fixed", "pipeline.gap=true"), True),
        (("explore.plan=fixed", "pipeline.gap=false"), False),
        (("explore.plan=bandit", "pipeline.gap=true"), False),
    ],
    ids=["trainers wait for nothing", "trainers also roll out", "the plan waits for rewards"],
)
def test_slots_without_a_rollout_preview_while_others_still_roll_out(tmp_path, changes, is_early):
    found = records(tmp_path / "run", "spotlight", changes)
    planned, compared = times(found, Planned), times(found, Compared)
    assert {planned[number + 1] < compared[number] for number in compared if number + 1 in planned} == {is_early}
    first = min(span.start for span in spans(found, "spot", Activity.PREVIEW) if span.start > planned[2])
    assert (first < compared[1]) is is_early


def test_trainers_preview_only_when_everything_is_trained(tmp_path):
    found = records(tmp_path / "run", "spotlight", LONG_PREVIEWS)
    trained = [(span.start, span.end) for span in spans(found, "reserved-1.", Activity.TRAIN)]
    done = times(found, IterationDone)
    previews = list(spans(found, "reserved-1.", Activity.PREVIEW))
    assert previews, "trainers help with the previews that are left"
    for preview in previews:
        end = min(at for at in done.values() if at >= preview.start)
        assert not [span for span in trained if preview.end <= span[0] < end], "it previewed before the last update"


def test_nodes_fetch_new_weights_while_their_workers_still_preview(tmp_path):
    """A copy takes 5 s, previews end later than that: the next rollouts begin without it."""
    found = records(tmp_path / "run", "spotlight", LONG_PREVIEWS, LONG_FETCH)
    done = times(found, IterationDone)
    for number in list(done)[:-1]:
        held = [
            record.at - done[number]
            for record in found
            if isinstance(record.event, Holding)
            and record.event.worker.startswith("spot")
            and (record.event.weights.version, record.event.weights.policy) == (number + 1, Policy.BEHAVIOUR)
        ]
        assert len(held) == 8
        assert max(held) < 1.0 < LONG_FETCH.node_copy_s


def test_patience_for_previews_is_a_multiple_of_all_training_of_the_iteration(tmp_path):
    """Two spot slots: trainers have trained nearly everything when the last rollout and the first preview begin."""
    few = ("cluster.spot=2", "explore.overrun=2", "explore.seeds=48")
    found = records(tmp_path / "run", "spotlight", (*LONG_PREVIEWS, *few))
    closed = [record.event for record in found if isinstance(record.event, ExplorationClosed)]
    assert [event.discarded for event in closed] == [0] * len(closed)
    assert closed
