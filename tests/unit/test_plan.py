"""`spotlight plan` and the forecast of `train --dry-run`: numbers of the forecast, told with what they rest on."""

import contextlib
import io
import json
from pathlib import Path

import msgspec
import pytest
import typer
from command_line import spotlight
from forecast_stories import BY_BATCH, ROUND_SECONDS

from spotlight.config import load_config
from spotlight.control.forecast import Forecast, forecast
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Point, Profile, Provenance, Series, Times
from spotlight.core.errors import ConfigError, InputError
from spotlight.surface.cli.plan import fleet_of, plan, rates_of, workload_of

RECIPE = "words-large-nft+spotlight-fixed"


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    return write_profile(tmp_path / "round.json")


def write_profile(path: Path, without: Operation | None = None) -> Path:
    """Round seconds per row, for one slot and for a gang of four."""
    operations = {
        operation: Times(
            interpolation="proportional",
            series=(
                Series(
                    provenance=Provenance.DERIVED,
                    how="Made up.",
                    points=tuple(Point(1, degree, seconds, seconds) for degree in degrees(operation)),
                ),
            ),
        )
        for operation, seconds in ROUND_SECONDS.items()
        if operation is not without
    }
    made = Profile(
        name="round", model="words", width=96, height=32, tokens=192, hardware="an abacus", date="2026-11-15",
        commit="none", notes="", operations=operations,
    )  # fmt: skip
    path.write_bytes(made.to_json())
    return path


def degrees(operation: Operation) -> tuple[int, ...]:
    return (1,) if operation in BY_BATCH else (1, 4)


def expected_of(profile: Path) -> Forecast:
    config, pace = load_config(RECIPE), Profile.load(profile)
    rates = rates_of(config, PriceTable.load(), True)
    return forecast(workload_of(config, pace), fleet_of(config, pace), pace, rates)


def planned(*arguments: object) -> str:
    """What the verb prints, as one process would."""
    app = typer.Typer(pretty_exceptions_enable=False)
    app.command()(plan)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        app([str(argument) for argument in arguments], standalone_mode=False)
    return out.getvalue()


def test_plan_as_json_is_the_forecast_of_every_count_with_its_sources(profile):
    told = json.loads(planned(RECIPE, "--profile", profile, "--spot", 8, 0, 16, "--json"))
    table, expected = PriceTable.load(), expected_of(profile)
    assert [one["spot"] for one in told["forecasts"]] == [0, 8, 16]
    assert told["forecasts"][1] == msgspec.to_builtins(expected)
    assert (told["recipe"], told["profile"], told["hardware"]) == (RECIPE, "round", "an abacus")
    assert (told["prices"], told["prices_digest"]) == (table.name, table.digest)


def test_plan_as_a_table_tells_dollars_as_if(profile):
    told = planned(RECIPE, "--profile", profile, "--spot", 8)
    expected = expected_of(profile)
    assert f"{expected.dollars:.2f}" in told
    assert f"{expected.phases.rollout:.1f}" in told
    assert f"{expected.previews_finished} / {expected.previews_planned}" in told
    assert "priced as if the slots were aws-p5-h100" in told


def test_plan_without_counts_compares_usual_ones_and_the_recipes_own(profile):
    told = json.loads(planned(RECIPE, "--profile", profile, "--set", "cluster.spot=5", "--json"))
    assert [one["spot"] for one in told["forecasts"]] == [0, 4, 5, 8, 16]


def test_deterministic_run_waits_for_every_planned_preview(profile):
    settings = ["--profile", profile, "--spot", 8, "--json", "--set", "explore.seeds=200"]
    plain = json.loads(planned(RECIPE, *settings))["forecasts"][0]
    awaited = json.loads(planned(RECIPE, *settings, "--set", "deterministic=true"))["forecasts"][0]
    assert plain["previews_finished"] < plain["previews_planned"] == awaited["previews_finished"]
    assert plain["phases"]["exploration"] == 0 < awaited["phases"]["exploration"]


def test_workload_counts_what_the_recipe_asks_for(profile):
    pace = Profile.load(profile)
    guided = load_config("words-large-flow-grpo", ["rollout.guidance=2", "eval.guidance=1"])
    work = workload_of(guided, pace)
    assert (work.samples, work.timesteps, work.forwards, work.passes, work.evaluation.passes) == (512, 3, 0, 2, 1)
    assert work.explore is None
    penalised = workload_of(load_config("words-nft", ["algorithm.timesteps_per_sample=99"]), pace)
    assert (penalised.timesteps, penalised.forwards) == (10, 2)


def test_prices_of_ones_own_are_used(tmp_path, profile):
    header = "name,provider,instance,gpu,gpus,on_demand_per_hour,spot_per_hour,date,source"
    prices = tmp_path / "mine.csv"
    prices.write_text(f"{header}\naws-p5-h100,Me,mine,H100,1,10,1,2026-11,me\n")
    told = json.loads(planned(RECIPE, "--profile", profile, "--prices", prices, "--spot", 8, "--json"))
    assert told["forecasts"][0]["dollars_per_hour"] == 4 * 10 + 8 * 1
    assert told["prices"] == "mine"


def test_profile_that_lacks_an_operation_is_refused_by_name(tmp_path):
    lacking = write_profile(tmp_path / "short.json", without=Operation.CHECKPOINT)
    with pytest.raises(ConfigError, match=r"'round' has no checkpoint, which the recipe 'words-large-nft\+spotlight"):
        planned(RECIPE, "--profile", lacking)


def test_model_without_a_profile_must_be_told_one():
    with pytest.raises(ConfigError, match=r"no profile of the model 'words-large'.*--profile \(.*h200-qwen-image-512"):
        planned(RECIPE)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "market.spot_price=aws-p5-h101"], "no row 'aws-p5-h101'.*did you mean 'aws-p5-h100'"),
        (["--set", "market.spot_price=lambda-h100"], "'lambda-h100' has no spot price"),
        (["--prices", "nowhere.csv"], "nowhere.csv does not exist"),
        (["7"], "'7' is no option of plan; numbers of spot nodes follow --spot"),
        (["--spot", "0", "--", "-3"], "--spot -3 is below 0"),
    ],
)
def test_bad_input_is_told_before_anything_is_computed(profile, arguments, words):
    with pytest.raises(InputError, match=words):
        planned(RECIPE, "--profile", profile, *arguments)


def test_spot_price_is_not_asked_for_where_no_spot_node_is(profile):
    told = planned(RECIPE, "--profile", profile, "--set", "market.spot_price=lambda-h100", "--spot", 0, "--json")
    assert json.loads(told)["forecasts"][0]["spot"] == 0


def test_dry_run_tells_the_same_forecast_beside_the_settings(profile):
    settings = ("--profile", profile, "--set", "cluster.gang=1", "--set", "model.device=cpu")
    shown = spotlight("train", RECIPE, "--dry-run", *settings)
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["cluster"]["spot"] == 8
    (one,) = json.loads(planned(RECIPE, *settings, "--spot", 8, "--json"))["forecasts"]
    assert f"{one['dollars']:.2f}" in shown.err
    assert "priced as if" in shown.err


def test_dry_run_of_a_model_without_a_profile_tells_the_settings_only():
    shown = spotlight("train", "scenes-nft", "--dry-run", "--model.device", "cpu")
    assert shown.code == 0, shown.err
    assert json.loads(shown.out)["model"]["name"] == "scenes"
    assert "at steady capacity" not in shown.err


def test_dry_run_of_what_only_a_simulation_can_do_is_refused_after_its_forecast(profile):
    shown = spotlight("train", RECIPE, "--dry-run", "--profile", profile)
    assert shown.code == 2
    assert "at steady capacity" in shown.err
    assert "several training ranks are simulated only" in shown.err.splitlines()[-1]


def test_dry_run_that_its_own_profile_cannot_forecast_says_so_and_tells_the_settings(tmp_path, monkeypatch):
    lacking = write_profile(tmp_path / "short.json", without=Operation.CHECKPOINT)
    monkeypatch.setattr("spotlight.surface.cli.plan.OWN_PROFILES", {"words": str(lacking)})
    monkeypatch.setattr("spotlight.control.profiles.profile_names", lambda: [str(lacking)])
    shown = spotlight("train", "words-nft", "--dry-run")
    assert shown.code == 0
    assert json.loads(shown.out)["model"]["name"] == "words"
    assert "no forecast: the profile 'round' has no checkpoint" in shown.err


def test_dry_run_with_a_profile_that_does_not_exist_is_refused():
    shown = spotlight("train", RECIPE, "--dry-run", "--profile", "h200-qwen-imag-512")
    assert shown.code == 2
    assert "did you mean 'h200-qwen-image-512'?" in shown.err
