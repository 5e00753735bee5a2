"""A run in virtual time: the real control plane, machines with the speed of a profile, rewards from a model."""

import os
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from market_stories import bubbles

from spotlight.compute.data.order import PromptOrder
from spotlight.compute.data.prompts import load_prompts
from spotlight.compute.data.worlds import world
from spotlight.config import RunConfig, load_config
from spotlight.control.explore.seeds import largest_variance
from spotlight.control.ledger.audit import audit
from spotlight.control.ledger.findings import Bounds
from spotlight.control.market.occupancy import Tenure
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile
from spotlight.core.errors import ConfigError
from spotlight.core.events import (
    AnyEvent,
    Checkpointed,
    ExplorationClosed,
    Issued,
    IterationDone,
    NodeLost,
    Previewed,
    RunStopped,
    Selected,
    StepCommitted,
    Worked,
)
from spotlight.core.journal import read
from spotlight.core.types import PromptId
from spotlight.core.work import Activity, Work
from spotlight.folder import RunFolder
from spotlight.sim.controller import Ending
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.simulate import Simulation, SimulationEnd, simulate, simulated

PROFILE = Profile.load("h200-qwen-image-512")


def with_seconds(operation: Operation, seconds: float) -> Profile:
    """The profile with these seconds for the operation."""
    times = PROFILE.operations[operation]
    points = (msgspec.structs.replace(times.series[0].points[0], p50=seconds, p99=seconds),)
    changed = msgspec.structs.replace(times, series=(msgspec.structs.replace(times.series[0], points=points),))
    return msgspec.structs.replace(PROFILE, operations={**PROFILE.operations, operation: changed})


LONG_FETCH = with_seconds(Operation.NODE_FETCH, 5.0)
"""A fetch as over a network: long enough for trainers to roll out meanwhile."""
MODEL = LearningModel(
    name="story",
    source="made up",
    base=0.5,
    limit=0.9,
    rate=0.05,
    prompt_std=0.1,
    seed_std=0.2,
    fidelity={3: 0.6, 6: 0.8},
)
SMALL = (
    "iterations=4",
    "rollout.prompts=16",
    "rollout.group_size=12",
    "eval.every=2",
    "eval.prompts=8",
    "explore.seeds=24",
    "explore.steps=4",
)
BUDGET, BUDGET_S = "budget.max_hours=0.05", 180.0
BULK = "time_s,node,event,seconds\n" + "".join(f"0,spot-{n},up,0\n" for n in range(1, 9))
BULK += "".join(f"60,spot-{n},kill,0\n" for n in range(1, 9))


def config(setup: str, changes: Sequence[str] = ()) -> RunConfig:
    return simulated(load_config(f"words-large-nft+{setup}", [*SMALL, *changes]), PROFILE)


def run(settings: RunConfig, folder: Path, profile: Profile = PROFILE) -> tuple[SimulationEnd, list[AnyEvent]]:
    run_folder = RunFolder(folder)
    run_folder.path.mkdir(parents=True)
    outcome = simulate(
        Simulation(
            config=settings,
            recipe="story",
            profile=profile,
            numerics=ModelNumerics(MODEL, settings.seed, settings.rollout.steps),
            prices=PriceTable.load(None),
        ),
        run_folder,
    )
    lag = int(settings.pipeline.asynchrony)
    bounds = Bounds(max_lag=lag, commit_every=settings.cluster.commit_every, bit_exact=False)
    assert audit(read(run_folder.journal), bounds).clean
    return outcome, [record.event for record in read(run_folder.journal)]


def test_finished_simulation_is_freed(tmp_path):
    """A process that simulates many runs frees each of them."""
    settings = config("spot-no-explore", ["iterations=1"])
    numerics = ModelNumerics(MODEL, settings.seed, settings.rollout.steps)
    held = weakref.ref(numerics)
    simulation = Simulation(
        config=settings, recipe="story", profile=PROFILE, numerics=numerics, prices=PriceTable.load(None)
    )
    assert simulate(simulation, RunFolder(tmp_path)).iterations == 1
    del numerics, simulation
    assert held() is None


def test_spot_slots_shorten_rollouts_and_leave_training_as_it_is(tmp_path):
    done = {}
    for setup in ("reserved-only", "spot-no-explore"):
        _, events = run(config(setup), tmp_path / setup)
        done[setup] = [event for event in events if isinstance(event, IterationDone)][-1]
    assert done["spot-no-explore"].rollout_s < 0.6 * done["reserved-only"].rollout_s
    assert done["spot-no-explore"].train_s == pytest.approx(done["reserved-only"].train_s, rel=0.01)


def test_previews_are_charged_by_their_own_operation(tmp_path):
    """Rounded previews of this profile are faster than other samples; without the operation they take as long."""
    quick = {Operation.PREVIEW_STEP: PROFILE.operations[Operation.FP8_PREVIEW_STEP]}
    rounded = msgspec.structs.replace(PROFILE, operations=PROFILE.operations | quick)
    took = {}
    for name, profile in (("rounded", rounded), ("alike", PROFILE)):
        _, events = run(config("explore-inline"), tmp_path / name, profile)
        took[name] = [event.seconds for event in events if isinstance(event, ExplorationClosed)][-1]
    assert took["rounded"] < 0.9 * took["alike"]


def test_fixed_previews_are_drawn_after_training_without_spot_nodes(tmp_path):
    no_spot = ("cluster.spot=0",)
    closed = {}
    for name, changes in (("awaited", ("explore.overrun=9",)), ("cut off", ()), ("bandit", ("explore.plan=bandit",))):
        _, events = run(config("spotlight-fixed", (*no_spot, *changes)), tmp_path / name)
        closed[name] = {event.finished for event in events if isinstance(event, ExplorationClosed)}
    assert closed == {"awaited": {16 * 24}, "cut off": {0}, "bandit": {0}}


def test_exploration_beside_training_costs_no_time_and_inline_does(tmp_path):
    seconds = {}
    for setup in ("spot-no-explore", "spotlight-fixed", "explore-inline"):
        outcome, events = run(config(setup, ["explore.seeds=20", "explore.audit_share=0.01"]), tmp_path / setup)
        seconds[setup] = outcome.seconds
        if setup != "spot-no-explore":
            assert all(event.finished for event in events if isinstance(event, ExplorationClosed))
    assert seconds["spotlight-fixed"] < 1.1 * seconds["spot-no-explore"]
    assert seconds["explore-inline"] > 1.04 * seconds["spotlight-fixed"]


def test_training_beside_rollouts_overlaps_as_much_where_advantages_wait_for_audits(tmp_path):
    """A tenth of the seeds is audited; if audits came after all rollouts, no part could be trained before."""
    seconds = {}
    for name, changes in (
        ("serial", ["pipeline.gap=false"]),
        ("kept", ["pipeline.gap=true"]),
        ("audited", ["pipeline.gap=true", "explore.baseline=audited"]),
    ):
        settings = config("spotlight-fixed", ["explore.seeds=48", "explore.steps=6", *changes])
        seconds[name] = run(settings, tmp_path / name)[0].seconds
    assert seconds["serial"] - seconds["audited"] > 0.5 * (seconds["serial"] - seconds["kept"]) > 0


def test_overrun_finishes_previews_that_outlast_training(tmp_path):
    finished = {}
    for overrun in (0.0, 2.0):
        changes = ["explore.seeds=64", "explore.steps=8", f"explore.overrun={overrun}"]
        _, events = run(config("spotlight-fixed", changes), tmp_path / f"{overrun}")
        finished[overrun] = [event.finished for event in events if isinstance(event, ExplorationClosed)]
    assert sum(finished[0.0]) < sum(finished[2.0]) == 3 * 16 * 64


def rolled_out(events: Sequence[AnyEvent], iteration: int) -> list[PromptId]:
    """Prompts of the iteration's groups, in order."""
    requests = [r for event in events if isinstance(event, Issued) for r in event.requests]
    groups = {r.group: r.sample.prompt for r in requests if (r.work, r.iteration) == (Work.ROLLOUT, iteration)}
    return [groups[group] for group in sorted(groups)]


@pytest.mark.parametrize(("scouts", "drawn"), [(0, 16 * 24), (12, 16 * 12 + 8 * 12)])
def test_prompts_whose_previews_vary_most_are_rolled_out_and_others_have_scouts_only(tmp_path, scouts, drawn):
    changes = ["rollout.prompts=8", "explore.candidates=2", f"explore.scouts={scouts}", "explore.overrun=9"]
    settings = config("spotlight-fixed", changes)
    _, events = run(settings, tmp_path / "run")
    order = PromptOrder(load_prompts(settings.data.prompts, world("words-large")), settings.seed)
    selected = {event.iteration: event for event in events if isinstance(event, Selected)}
    previewed = [event for event in events if isinstance(event, Previewed)]
    assert [len(event.seeds) for event in previewed] == [drawn] * 3
    assert rolled_out(events, 0) == [prompt.id for prompt in order.take(0, 8)]
    for event in previewed:
        rewards = [[r for g, r in zip(event.groups, event.rewards, strict=True) if g == n] for n in range(16)]
        varied = [largest_variance(known, settings.rollout.group_size) for known in rewards]
        chosen = selected[event.iteration].prompts
        assert min(varied[number] for number in chosen) >= sorted(varied)[-8]
        candidates = [prompt.id for prompt in order.take(16 * event.iteration, 16)]
        assert rolled_out(events, event.iteration) == [candidates[number] for number in chosen]
        counts = {number: len(known) for number, known in enumerate(rewards)}
        assert {counts[number] for number in chosen} == {24}
        assert {counts[number] for number in counts if number not in chosen} == {scouts or 24}


def test_candidates_are_chosen_from_the_finished_previews_when_training_ends_among_scouts(tmp_path):
    """Most previews of the scouts are cut off: no second round begins, and whole groups are rolled out."""
    changes = ["rollout.prompts=8", "explore.candidates=9", "explore.scouts=40", "explore.seeds=64", "explore.steps=8"]
    _, events = run(config("spotlight-fixed", changes), tmp_path / "run")
    closed = [event for event in events if isinstance(event, ExplorationClosed)]
    assert closed
    assert all(event.discarded and event.finished + event.discarded == 72 * 40 for event in closed)
    selected = [event for event in events if isinstance(event, Selected)]
    assert all(len(event.prompts) == len(event.seeds) == 8 for event in selected)
    assert len(rolled_out(events, 3)) == 8


def test_four_ranks_train_four_times_as_fast_as_one(tmp_path):
    seconds = {}
    for gang in (1, 4):
        _, events = run(config("reserved-only", [f"cluster.gang={gang}"]), tmp_path / f"{gang}")
        seconds[gang] = [event.train_s for event in events if isinstance(event, IterationDone)][-1]
    fixed = 2 * PROFILE.seconds(Operation.OPTIMIZER_STEP)
    assert (seconds[1] - fixed) / (seconds[4] - fixed) == pytest.approx(4, rel=0.05)


WAVES = ("iterations=2", "rollout.prompts=32", "rollout.group_size=16", "eval.every=10")
"""Three waves of rollouts on twelve slots."""


@pytest.mark.parametrize("steps", [10, pytest.param(40, marks=pytest.mark.slow)])
def test_training_on_complete_groups_shortens_an_iteration_and_help_of_the_trainers_never_lengthens_it(tmp_path, steps):
    seconds = {}
    for name, gap, tag in (("serial", False, False), ("gap", True, False), ("tag", True, True)):
        changes = [*WAVES, f"rollout.steps={steps}", f"pipeline.gap={gap}", f"pipeline.tag={tag}"]
        _, events = run(config("spot-no-explore", changes), tmp_path / name)
        seconds[name] = [e.rollout_s + e.train_s for e in events if isinstance(e, IterationDone) and e.iteration]
    serial, gap, tag = (sum(seconds[name]) for name in ("serial", "gap", "tag"))
    assert gap < 0.85 * serial
    assert tag <= gap * 1.001
    if steps == 40:
        assert tag < 0.85 * gap


def test_training_on_complete_groups_changes_no_second_where_all_slots_train(tmp_path):
    """Parts would only interrupt the rollouts."""
    seconds = {}
    for gap in (False, True):
        _, events = run(config("reserved-only", [*WAVES, f"pipeline.gap={gap}"]), tmp_path / f"gap {gap}")
        seconds[gap] = [e.rollout_s + e.train_s for e in events if isinstance(e, IterationDone)]
    assert seconds[True] == pytest.approx(seconds[False], rel=1e-3)


def test_spot_slots_of_half_the_speed_take_twice_as_long_and_less_with_help_of_the_trainers(tmp_path):
    seconds = {}
    for name, speed, tag in (("plain", 1.0, False), ("slow", 0.5, False), ("helped", 0.5, True)):
        changes = [*WAVES, "rollout.steps=20", f"cluster.fleet=[{{speed: {speed}}}]", f"pipeline.tag={tag}"]
        _, events = run(config("spot-no-explore", [*changes, "pipeline.gap=true"]), tmp_path / name)
        seconds[name] = [e.rollout_s for e in events if isinstance(e, IterationDone)][-1]
    fetched_s = PROFILE.seconds(Operation.NODE_FETCH)
    assert seconds["slow"] - fetched_s == pytest.approx(2 * (seconds["plain"] - fetched_s), rel=0.01)
    assert seconds["helped"] < 0.8 * seconds["slow"]


AHEAD = (
    *("rollout.prompts=2", "rollout.group_size=16", "rollout.steps=20", "algorithm.timesteps_per_sample=4"),
    *("train.updates_per_iteration=1", "pipeline.gap=true", "pipeline.tag=true", "pipeline.asynchrony=true"),
    *("iterations=8", "eval.every=100", "eval.prompts=1", "output.checkpoint_every=100", "cluster.rows=4"),
)


def test_trainers_adopt_the_weights_they_wrote_while_others_fetch_them(tmp_path):
    _, events = run(config("spot-no-explore", AHEAD), tmp_path / "run", LONG_FETCH)
    worked = [event for event in events if isinstance(event, Worked)]
    fetches = [e for e in worked if e.activity is Activity.LOAD and e.worker.startswith("spot-1.")]
    own = [e for e in worked if e.activity is Activity.LOAD and e.worker.startswith("reserved-1.")]
    assert fetches[-3].end - fetches[-3].start == pytest.approx(PROFILE.seconds(Operation.STORE_LOAD))
    assert fetches[-3].start - own[-3].start == pytest.approx(LONG_FETCH.node_copy_s, abs=0.01)
    assert own[-3].end - own[-3].start == pytest.approx(PROFILE.seconds(Operation.ADOPT))


def test_batches_over_pairs_pay_where_parts_are_small(tmp_path):
    """A group of 16 on four ranks: eight pairs are one batch, four samples at a time are two."""
    seconds = {}
    for over in ("samples", "pairs"):
        changes = [*WAVES, "pipeline.gap=true", "pipeline.least_groups=1", "deterministic=true"]
        _, events = run(config("spot-no-explore", [*changes, f"train.batches_over={over}"]), tmp_path / over)
        seconds[over] = next(event.train_s for event in events if isinstance(event, IterationDone))
    saved = 2 * (charged(4) - charged(8) / 2)
    assert seconds["samples"] - seconds["pairs"] == pytest.approx(32 * saved, rel=0.01)


def charged(rows: int) -> float:
    """Seconds of one training batch, with the forward of the behaviour policy."""
    return PROFILE.seconds(Operation.TRAIN_TIMESTEP, rows) + PROFILE.seconds(Operation.DENOISE_STEP, rows)


def test_drain_requested_between_two_parts_stops_after_the_iteration_with_all_its_steps(tmp_path):
    changes = ["pipeline.gap=true", BUDGET, "iterations=50"]
    outcome, events = run(config("spot-no-explore", changes), tmp_path / "run")
    assert outcome.ending is Ending.STOPPED
    assert 0 < outcome.iterations < 50
    assert BUDGET_S < outcome.seconds < 1.25 * BUDGET_S, "it ends with the iteration in progress"
    assert sum(isinstance(event, StepCommitted) for event in events) == 2 * outcome.iterations
    kept = [event.step for event in events if isinstance(event, Checkpointed)]
    assert kept[-1] == 2 * outcome.iterations


def test_checkpoints_hold_a_simulated_run_up_for_their_snapshots_only(tmp_path):
    """Without a measured snapshot the run waits for the whole checkpoint."""
    quick = {**PROFILE.operations, Operation.SNAPSHOT: PROFILE.operations[Operation.ADOPT]}
    held = {name: times for name, times in PROFILE.operations.items() if name is not Operation.SNAPSHOT}
    seconds = {}
    for name, every, operations in (("never", 100, quick), ("quick", 1, quick), ("held", 1, held)):
        settings = config("spot-no-explore", [f"output.checkpoint_every={every}"])
        profile = msgspec.structs.replace(PROFILE, operations=operations)
        _, events = run(settings, tmp_path / name, profile)
        seconds[name] = sum(e.rollout_s + e.train_s for e in events if isinstance(e, IterationDone))
        kept = [event.step for event in events if isinstance(event, Checkpointed)]
        assert kept == ([8] if name == "never" else [2, 4, 6, 8])
    assert seconds["quick"] - seconds["never"] <= 3 * PROFILE.seconds(Operation.ADOPT)
    assert seconds["held"] - seconds["never"] > PROFILE.seconds(Operation.CHECKPOINT)


def test_losing_every_spot_machine_for_good_only_makes_the_run_slower(tmp_path):
    (tmp_path / "bulk.csv").write_text(BULK)
    steady, _ = run(config("spotlight"), tmp_path / "steady")
    outcome, events = run(config("spotlight", [f"market.trace={tmp_path / 'bulk.csv'}"]), tmp_path / "bulk")
    assert (outcome.ending, outcome.iterations) == (Ending.FINISHED, 4)
    assert sum(isinstance(event, NodeLost) for event in events) == 8
    assert outcome.seconds > steady.seconds


def test_a_budget_of_hours_ends_a_simulated_run_in_virtual_time(tmp_path):
    outcome, events = run(config("reserved-only", [BUDGET, "iterations=50"]), tmp_path / "run")
    assert outcome.ending is Ending.STOPPED
    assert 0 < outcome.iterations < 10
    assert BUDGET_S < outcome.seconds < 1.25 * BUDGET_S, "it ends with the iteration in progress"
    assert "max_hours" in next(event.reason for event in events if isinstance(event, RunStopped))


def test_a_budget_of_dollars_ends_a_simulated_run(tmp_path):
    outcome, _ = run(config("reserved-only", ["budget.max_dollars=2", "iterations=50"]), tmp_path / "run")
    assert outcome.ending is Ending.STOPPED
    assert "max_dollars" in outcome.reason


def test_the_same_run_in_two_processes_has_the_same_journal_to_the_byte(tmp_path):
    program = (
        "import sys; from pathlib import Path; import test_simulate as t; "
        "print(t.run(t.config('spotlight', ['market.trace=bulk', 'market.start_h=2.2']), Path(sys.argv[1]))[0].digest)"
    )
    digests = set()
    here = Path(__file__).parent
    modules = os.pathsep.join(map(str, (here, here.parent / "unit")))
    for seed in ("1", "2"):
        environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": modules}
        result = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / seed)], env=environment, capture_output=True, text=True
        )
        assert result.returncode == 0, result.stderr
        digests.add(result.stdout.strip())
    assert len(digests) == 1


def test_another_seed_is_another_run(tmp_path):
    digests = {run(config("spotlight", [f"seed={seed}"]), tmp_path / f"{seed}")[0].digest for seed in (0, 1)}
    assert len(digests) == 2


def test_a_profile_without_an_operation_is_refused_before_anything_is_simulated(tmp_path):
    partial = msgspec.structs.replace(
        PROFILE, operations={op: times for op, times in PROFILE.operations.items() if op is not Operation.DECODE}
    )
    with pytest.raises(ConfigError, match=r"has no decode, which the recipe 'story' needs; measure"):
        run(config("reserved-only"), tmp_path / "run", partial)


def test_gang_size_missing_in_the_profile_is_refused_with_the_sizes_it_has(tmp_path):
    with pytest.raises(ConfigError, match=r"cluster.gang is 3, but the profile .* of 1, 2, 4, 8, 12 ranks only"):
        run(config("reserved-only", ["cluster.gang=3"]), tmp_path / "run")


def test_changes_of_role_are_a_kind_of_their_own_with_the_seconds_of_the_profile(tmp_path):
    run(config("spot-no-explore", ["pipeline.gap=true"]), tmp_path / "run", LONG_FETCH)
    spent = bubbles(read(RunFolder(tmp_path / "run").journal)).seconds[Tenure.RESERVED]
    changes = spent[Activity.SWITCH] / PROFILE.seconds(Operation.ROLE_SWITCH)
    assert changes == pytest.approx(round(changes), abs=1e-3)
    # Four ranks change at least to training and back in each of four iterations.
    assert changes >= 4 * 4 * 2 - 4
    assert {Activity.TRAIN, Activity.ASSIST, Activity.PUBLISH, Activity.LOAD} <= set(spent)
