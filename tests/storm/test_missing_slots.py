"""Runs that lack spot slots, in virtual time: they explore on reserved slots where it pays, and nowhere else."""

from pathlib import Path

import pytest
from test_simulate import config, run

from spotlight.core.events import ExplorationClosed, Planned

LEARNED = ("iterations=5", "rollout.prompts=8", "explore.seeds=48", "explore.steps=6", "explore.audit_share=0.05")
TRAINED_LONG = "algorithm.timesteps_per_sample=40"


def previews(folder: Path, *changes: str, setup: str = "spotlight-fixed") -> tuple[list[int], list[float], float]:
    """Finished previews and predicted waits by iteration, and the seconds of the run."""
    end, events = run(config(setup, [*LEARNED, *changes]), folder)
    finished = [event.finished for event in events if isinstance(event, ExplorationClosed)]
    return finished, [event.awaited_s for event in events if isinstance(event, Planned)], end.seconds


def test_run_without_spot_slots_explores_on_reserved_ones_where_training_is_long(tmp_path):
    finished, waits, seconds = previews(tmp_path / "auto", "cluster.spot=0", TRAINED_LONG)
    assert finished[0] == 0, "nothing is measured before the first iteration has ended"
    assert min(finished[1:]) > 8 * 12
    assert min(waits[1:]) > 0
    never, _, plain_s = previews(tmp_path / "never", "cluster.spot=0", TRAINED_LONG, "explore.overrun=0")
    assert sum(never) == 0
    assert seconds - plain_s == pytest.approx(sum(waits), rel=0.25), "it waits as long as it had predicted"


def test_run_without_spot_slots_is_as_fast_as_reserved_only_where_previews_do_not_pay(tmp_path):
    finished, waits, seconds = previews(tmp_path / "auto", "cluster.spot=0")
    assert (sum(finished), sum(waits)) == (0, 0)
    _, _, plain_s = previews(tmp_path / "plain", setup="reserved-only")
    assert seconds == plain_s


def test_run_with_all_its_slots_waits_for_no_preview(tmp_path):
    whole = previews(tmp_path / "auto", TRAINED_LONG)
    assert whole[1] == [0] * 4
    assert whole == previews(tmp_path / "never", TRAINED_LONG, "explore.overrun=0")


@pytest.mark.parametrize("tag", ["true", "false"])
def test_predicted_time_counts_trainers_only_if_they_preview_beside_other_slots(tmp_path, tag):
    """One of four spot nodes is there."""
    (tmp_path / "one.csv").write_text("t_s,n\n0,1\n99999,1\n")
    changes = (*LEARNED, TRAINED_LONG, "cluster.spot=4", f"market.trace={tmp_path}/one.csv", f"pipeline.tag={tag}")
    _, events = run(config("spotlight-fixed", changes), tmp_path / "run")
    plans = [event for event in events if isinstance(event, Planned)][1:]
    closed = [event for event in events if isinstance(event, ExplorationClosed)][1:]
    assert [end.finished for end in closed] == [plan.previews for plan in plans]
    assert [end.seconds for end in closed] == pytest.approx([plan.predicted_s for plan in plans], rel=0.15)
