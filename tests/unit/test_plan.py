"""`spotlight plan` and the forecast of `train --dry-run`: figures of short simulations, with their sources."""

import contextlib
import io
import json
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any

import msgspec
import pytest
import typer
from command_line import spotlight

from spotlight.config import load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile
from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli.plan import plan
from spotlight.surface.planning import forecast, simulated_iterations
from spotlight.surface.simulating import Assumed

RECIPE = "words-large-nft+spotlight-fixed"
PROFILE = "h200-qwen-image-512"
ITERATIONS = 5
SMALL = (
    *(f"iterations={ITERATIONS}", "rollout.prompts=8", "rollout.group_size=8", "eval.prompts=16"),
    *("explore.seeds=24", "explore.steps=4"),
)


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def changes(*settings: str) -> list[str]:
    return [word for setting in (*SMALL, *settings) for word in ("--set", setting)]


def planned(*arguments: object) -> str:
    """The output of the verb, as one process would print it."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(plan)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        app([str(argument) for argument in arguments], standalone_mode=False)
    return out.getvalue()


@cache
def forecasts(*arguments: object, recipe: str = RECIPE, settings: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    printed = planned(recipe, "--profile", PROFILE, *arguments, *changes(*settings), "--json")
    return list(json.loads(printed)["forecasts"])


def write_profile(path: Path, without: Operation) -> Path:
    """The shipped profile without one operation."""
    whole = Profile.load(PROFILE)
    operations = {operation: times for operation, times in whole.operations.items() if operation is not without}
    path.write_bytes(msgspec.structs.replace(whole, operations=operations).to_json())
    return path


# -- figures -----------------------------------------------------------------------------------------------------------


def test_plan_of_a_fleet_has_the_figures_of_its_simulation():
    short = ("eval.every=1", f"iterations={ITERATIONS}")
    (one,) = forecasts("--spot", 3, settings=short)
    own = ("cluster.spot=3", "market.trace=null")
    simulated = json.loads(spotlight("sim", RECIPE, "--profile", PROFILE, *changes(*short, *own), "--json").out)
    done, explored = simulated["status"]["iterations"], simulated["status"]["explorations"]
    middle = done[2:-1]
    assert one["seconds_per_iteration"] == pytest.approx((done[-2]["at"] - done[1]["at"]) / len(middle))
    assert one["seconds_per_iteration"] == pytest.approx(sum(one["phases"].values()))
    assert one["phases"]["rollout"] == pytest.approx(fmean(each["rollout_s"] for each in middle))
    assert one["phases"]["train"] == pytest.approx(fmean(each["train_s"] for each in middle))
    assert one["previews_planned"] == round(fmean(each["planned"] for each in explored[2:]))
    assert one["previews_finished"] == round(fmean(each["finished"] for each in explored[2:]))
    assert one["hours"] == pytest.approx(simulated["outcome"]["seconds"] / 3600)
    assert one["dollars"] == pytest.approx(simulated["status"]["cost"]["dollars"])


def test_iterations_that_are_not_simulated_take_the_mean_and_cost_as_much():
    found = [forecasts("--spot", 3, settings=(f"iterations={count}",))[0] for count in (1000, 1010)]
    seconds = found[0]["seconds_per_iteration"]
    assert simulated_iterations(load_config(RECIPE, [*SMALL, "iterations=1000"])) < 1000
    assert found[1]["hours"] - found[0]["hours"] == pytest.approx(10 * seconds / 3600)
    assert found[1]["dollars"] - found[0]["dollars"] == pytest.approx(10 * found[0]["dollars_per_iteration"])


def test_spot_nodes_shorten_an_iteration_until_training_bounds_it():
    recipe, counts, bound = "words-large-nft+pipelined", (0, 4, 16, 32, 64), ("algorithm.timesteps_per_sample=3",)
    forecast = forecasts("--spot", *counts, recipe=recipe, settings=bound)
    found = {one["spot"]: one["seconds_per_iteration"] for one in forecast}
    assert found[0] > found[4] > found[16] >= found[32]
    assert found[64] == pytest.approx(found[32], rel=0.03)
    (trained_longer,) = forecasts("--spot", 64, recipe=recipe, settings=("algorithm.timesteps_per_sample=4",))
    assert trained_longer["seconds_per_iteration"] > 1.2 * found[64]


def test_evaluation_that_is_waited_for_is_shared_by_the_iterations_between_two():
    """With every=100 no middle iteration has one: the evaluation of the base gives its duration."""
    often, seldom = (forecasts("--spot", 0, settings=(f"eval.every={every}",))[0] for every in (50, 100))
    assert 0 < seldom["phases"]["evaluation"] == pytest.approx(often["phases"]["evaluation"] / 2)
    assert seldom["seconds_per_iteration"] < often["seconds_per_iteration"]


def test_checkpoint_that_is_not_written_when_the_next_begins_is_waited_for(tmp_path):
    whole = Profile.load(PROFILE)
    times = whole.operations[Operation.CHECKPOINT]
    points = tuple(msgspec.structs.replace(point, p50=500.0, p99=500.0) for point in times.series[0].points)
    slow = msgspec.structs.replace(times, series=(msgspec.structs.replace(times.series[0], points=points),))
    path = tmp_path / "slow.json"
    path.write_bytes(
        msgspec.structs.replace(whole, operations={**whole.operations, Operation.CHECKPOINT: slow}).to_json()
    )
    settings = changes("output.checkpoint_every=1")
    (one,) = json.loads(planned(RECIPE, "--profile", path, "--spot", 4, *settings, "--json"))["forecasts"]
    assert one["phases"]["checkpoint"] > one["phases"]["rollout"] + one["phases"]["train"]
    assert one["seconds_per_iteration"] == pytest.approx(sum(one["phases"].values()))


def test_deterministic_run_waits_for_every_planned_preview():
    many = ("explore.seeds=200",)
    (plain,) = forecasts("--spot", 8, settings=many)
    (awaited,) = forecasts("--spot", 8, settings=(*many, "deterministic=true"))
    assert plain["previews_finished"] < plain["previews_planned"] == awaited["previews_finished"]
    assert plain["phases"]["exploration"] == 0 < awaited["phases"]["exploration"]


def test_capacity_is_steady_and_unlimited_whatever_trace_and_budget_the_recipe_has():
    limits = ("market.trace=storm", "market.fallback_s=0", "budget.max_hours=0.001", "budget.max_dollars=0.01")
    assert forecasts("--spot", 4, settings=limits) == forecasts("--spot", 4)


def test_prices_of_ones_own_are_used(tmp_path):
    header = "name,provider,instance,gpu,gpus,on_demand_per_hour,spot_per_hour,date,source"
    prices = tmp_path / "mine.csv"
    prices.write_text(f"{header}\naws-p5-h100,Me,mine,H100,1,10,1,2026-11,me\n")
    printed = json.loads(planned(RECIPE, "--profile", PROFILE, "--prices", prices, "--spot", 8, *changes(), "--json"))
    (one,) = printed["forecasts"]
    assert one["dollars_per_hour"] == 4 * 10 + 8 * 1
    assert one["dollars"] == pytest.approx(one["hours"] * one["dollars_per_hour"], rel=0.01)
    assert printed["prices"] == "mine"


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_plan_as_json_has_every_count_with_its_sources():
    printed = json.loads(planned(RECIPE, "--profile", PROFILE, "--spot", 2, 0, *changes(), "--json"))
    table, profile = PriceTable.load(), Profile.load(PROFILE)
    assert [one["spot"] for one in printed["forecasts"]] == [0, 2]
    assert (printed["recipe"], printed["profile"], printed["hardware"]) == (RECIPE, PROFILE, profile.hardware)
    assert (printed["prices"], printed["prices_digest"]) == (table.name, table.digest)
    assert (printed["simulated_iterations"], printed["iterations"]) == (ITERATIONS, ITERATIONS)


def test_plan_as_a_table_names_the_profile_and_the_count_of_simulated_iterations():
    printed = planned(RECIPE, "--profile", PROFILE, "--spot", 4, *changes())
    (one,) = forecasts("--spot", 4)
    assert f"{one['dollars']:.2f}" in printed
    assert f"{one['seconds_per_iteration']:.1f}" in printed
    assert f"{one['previews_finished']} / {one['previews_planned']}" in printed
    assert f"Simulated with the profile {PROFILE}" in printed
    assert f"over {ITERATIONS} iterations" in printed
    assert "priced as if the slots were aws-p5-h100" in printed
    assert "Not simulated" in printed


def test_recipe_whose_loss_has_no_fit_is_simulated_with_the_rewards_of_another():
    printed = json.loads(planned("words-flow-grpo", "--spot", 0, *changes(), "--json"))
    assert printed["fit"] == "words-nft"
    assert printed["forecasts"][0]["seconds_per_iteration"] > 0


@pytest.mark.parametrize(
    ("recipe", "setting", "counts"),
    [
        (RECIPE, "cluster.spot=5", [0, 5, 10]),
        ("words-large-nft+reserved-only", "cluster.spot=0", [0, 4, 8]),
        ("words-large-nft+disaggregated-serial", "cluster.spot=2", [2, 4]),
    ],
)
def test_plan_without_counts_compares_none_the_recipes_own_and_more_where_the_recipe_can(recipe, setting, counts):
    few = ("rollout.prompts=2", "rollout.group_size=4", "explore.seeds=8", "eval.prompts=4")
    assert [one["spot"] for one in forecasts(recipe=recipe, settings=(setting, *few))] == counts


def test_progress_is_reported_after_every_iteration_and_nothing_is_left_on_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assumed = Assumed(profile=Profile.load(PROFILE), prices=PriceTable.load())
    seen: list[int] = []
    forecast(load_config(RECIPE, SMALL), RECIPE, 2, assumed, seen.append)
    assert seen == list(range(1, ITERATIONS + 1))
    assert not list(tmp_path.iterdir())


# -- bad input ---------------------------------------------------------------------------------------------------------


def test_profile_that_lacks_an_operation_is_refused_by_name(tmp_path):
    lacking = write_profile(tmp_path / "short.json", without=Operation.CHECKPOINT)
    with pytest.raises(ConfigError, match=r"has no checkpoint, which the recipe 'words-large-nft\+spotlight"):
        planned(RECIPE, "--profile", lacking)


def test_model_without_a_profile_needs_one():
    with pytest.raises(ConfigError, match=r"no profile of the model 'words-large'.*--profile \(.*h200-qwen-image-512"):
        planned(RECIPE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "market.spot_price=aws-p5-h101"], "no row 'aws-p5-h101'.*did you mean 'aws-p5-h100'"),
        (["--set", "market.spot_price=lambda-h100"], "'lambda-h100' has no spot price"),
        (["--set", "cluster.gang=3"], "cluster.gang is 3, but the profile 'h200-qwen-image-512' has an optimizer"),
        (["--prices", "nowhere.csv"], "nowhere.csv does not exist"),
        (["7"], "'7' is not an option of plan; numbers of spot nodes follow --spot"),
        (["--spot", "0", "--", "-3"], "--spot -3 is below 0"),
    ],
)
def test_bad_input_is_refused_before_anything_is_simulated(monkeypatch, arguments, words):
    monkeypatch.setattr("spotlight.surface.planning.simulate", lambda *_: pytest.fail("simulated"))
    with pytest.raises(InputError, match=words):
        planned(RECIPE, "--profile", PROFILE, *arguments)


def test_fleet_that_the_recipe_cannot_run_with_is_refused_when_it_is_named():
    with pytest.raises(ConfigError, match="every slot only trains"):
        forecasts("--spot", 0, recipe="words-large-nft+disaggregated-serial")


def test_spot_price_is_not_needed_without_spot_nodes():
    (one,) = forecasts("--spot", 0, settings=("market.spot_price=lambda-h100",))
    assert one["spot"] == 0


# -- train --dry-run ---------------------------------------------------------------------------------------------------


def test_dry_run_shows_the_seconds_of_plan_beside_the_settings():
    own = ("cluster.gang=1", "model.device=cpu")
    shown = spotlight("train", RECIPE, "--dry-run", "--profile", PROFILE, *changes(*own))
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["cluster"]["spot"] == 8
    (one,) = forecasts("--spot", 8, settings=own)
    lines = {line.strip().partition("  ")[0]: line.split()[-1] for line in shown.err.splitlines() if line.strip()}
    assert lines["roll out, s"] == f"{one['phases']['rollout']:.1f}"
    assert lines["iteration, s"] == f"{one['seconds_per_iteration']:.1f}"
    assert lines["$"] == f"{one['dollars']:.2f}"
    assert "priced as if" in shown.err


def test_dry_run_of_a_model_without_a_profile_prints_the_settings_only():
    shown = spotlight("train", "scenes-nft", "--dry-run", "--model.device", "cpu")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["model"]["name"] == "scenes"
    assert "at steady capacity" not in shown.err


def test_dry_run_of_what_this_machine_cannot_do_is_refused_after_its_forecast():
    shown = spotlight("train", RECIPE, "--dry-run", "--profile", PROFILE, *changes())
    assert shown.code == 3
    assert "at steady capacity" in shown.err
    assert "torch" in shown.err.splitlines()[-1]
    assert "set model.device=cpu" in shown.err.splitlines()[-1]


def test_dry_run_whose_profile_cannot_forecast_it_has_a_remark_and_prints_the_settings(tmp_path, monkeypatch):
    lacking = write_profile(tmp_path / "short.json", without=Operation.CHECKPOINT)
    monkeypatch.setattr("spotlight.surface.fleets.OWN_PROFILES", {"words": str(lacking)})
    shown = spotlight("train", "words-nft", "--dry-run")
    assert shown.code == 0
    assert json.loads(shown.out)["model"]["name"] == "words"
    assert "no forecast: the profile 'h200-qwen-image-512' has no checkpoint" in shown.err


def test_dry_run_with_a_profile_that_does_not_exist_is_refused():
    shown = spotlight("train", RECIPE, "--dry-run", "--profile", "h200-qwen-imag-512")
    assert shown.code == 2
    assert "did you mean 'h200-qwen-image-512'?" in shown.err
