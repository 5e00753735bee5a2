"""Problems of a run: each is found where it exists, says what to do, and a healthy run has none."""

import msgspec
import pytest
from recorded_folder import rough_story
from story_journal import story

from spotlight.budget import BudgetConfig
from spotlight.core.events import Evaluated, Record, Released, RunStopped
from spotlight.surface.liveness import RunStanding, State
from spotlight.surface.panels.problem_panel import Severity, problem_panel
from spotlight.surface.projections import RunView
from spotlight.surface.reward_rows import RewardRow


def standing(state: State = State.RUNNING, **changes) -> RunStanding:
    alive = state in (State.STARTING, State.RUNNING, State.DRAINING)
    known = {"reason": None, "pid": 7, "pid_alive": alive, "last_progress_s": 1.0, "waiting_for": None}
    return RunStanding(state=state, **{**known, **changes})


def found(view: RunView, state: RunStanding | None = None, **options) -> list[tuple[Severity, str]]:
    panel = problem_panel(view, state or standing(), "demo-1", **options)
    assert all(one.todo for one in panel.advice)
    return [(one.severity, one.problem) for one in panel.advice]


def healthy() -> RunView:
    return RunView.of(story(iterations=3, finished=False))


def test_healthy_run_has_no_problems():
    assert found(healthy()) == []
    assert found(RunView.of(story()), standing(State.FINISHED)) == []


def test_dead_and_failed_runs_say_how_to_continue():
    for state in (State.DEAD, State.FAILED):
        panel = problem_panel(healthy(), standing(state, reason="the disk is full"), "demo-1")
        assert panel.advice[0].severity is Severity.BAD
        assert "spotlight resume demo-1" in panel.advice[0].todo


def test_quiet_run_and_one_without_spot_slots_are_warned_of():
    quiet = standing(last_progress_s=900.0, waiting_for="2 rollouts of iteration 3")
    ((severity, problem),) = found(healthy(), quiet)
    assert severity is Severity.WARNING
    assert "No progress for 15 min 00 s: it waits for 2 rollouts" in problem
    records = story(iterations=4, finished=False)
    lost = next(n for n, record in enumerate(records) if record.at > 55.6)
    alone = RunView.of(records[:lost])
    alone.at += 200
    assert any("No spot slot for" in problem for _, problem in found(alone))


def test_rewards_without_contrast_and_a_falling_score_are_found():
    view = healthy()
    view.rewards.rows[2] = RewardRow(iteration=2, means={}, spread=0.0, groups=4, flat=4)
    assert found(view)[0][0] is Severity.BAD
    assert "4 of 4 groups of iteration 3 have one reward" in found(view)[0][1]
    records = story(iterations=3, finished=False)
    low = Evaluated(iteration=4, scores={"exact": (0.1, 0.05, 0.15)})
    worse = RunView.of([*records, Record(len(records), records[-1].at, low)])
    assert any("fell to 0.10 from its best, 0.60 after 3 iterations" in problem for _, problem in found(worse))


def test_gaps_and_wasted_steps_are_found():
    assert any("samples dropped" in problem for _, problem in found(RunView.of(rough_story())))
    wasteful = [
        msgspec.structs.replace(record, event=msgspec.structs.replace(record.event, redone=90))
        if isinstance(record.event, Released)
        else record
        for record in story(iterations=3, finished=False)
    ]
    assert any("were done again" in problem for _, problem in found(RunView.of(wasteful)))


@pytest.mark.parametrize(
    ("budget", "spent", "count"),
    [
        (BudgetConfig(max_dollars=5), 4.9, 1),
        (BudgetConfig(max_dollars=5), 1.0, 0),
        (BudgetConfig(max_hours=0.014), 0, 1),
    ],
)
def test_budget_is_shown_shortly_before_it_is_spent(budget, spent, count):
    assert len(found(healthy(), spent=spent, budget=budget)) == count


def test_stopped_run_says_why_in_its_summary_alone():
    records = story(iterations=2, finished=False)
    stopped = RunView.of([*records, Record(len(records), records[-1].at, RunStopped(reason="asked to"))])
    assert found(stopped, standing(State.STOPPED, reason="asked to")) == []
