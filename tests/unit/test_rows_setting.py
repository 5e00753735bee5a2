"""`cluster.rows: auto` as a setting: its meaning where rows are measured, and where they must not be."""

import pytest
from recipe_groups import REAL_RECIPES

from spotlight.config import load_config, recipe_names
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.errors import ConfigError
from spotlight.folder import check_unchanged
from spotlight.node.worker_settings import WorkerSettings
from spotlight.run import Run
from spotlight.sim.simulate import simulated
from spotlight.surface.cli.train import resumed_config

PACE = "h200-qwen-image-512"


def worker_settings(tmp_path, *overrides: str) -> WorkerSettings:
    config = load_config("words-nft", [*overrides, f"output.folder={tmp_path}"])
    run = Run.start(config, "words-nft", PriceTable.load(None))
    return WorkerSettings.model_validate_json(run.pool_settings("token").worker_settings)


def test_workers_measure_by_default_and_receive_the_workload(tmp_path):
    cluster = load_config("words-nft").cluster
    assert cluster.rows == "auto"
    nodes = (*cluster.reserved_nodes(), *cluster.spot_nodes(), *cluster.stand_ins())
    assert {spec.rows for spec in nodes} == {None}
    prompts = tmp_path / "mine.txt"
    prompts.write_text('the word "cat"\nplease draw the word "house"\nthe word "tree"\n')
    rows = worker_settings(tmp_path, "rollout.guidance=2", f"data.prompts={prompts}").rows
    assert rows is not None
    assert (rows.height, rows.width, rows.guidance, rows.window) == (32, 96, 2.0, 0)
    assert rows.prompt == 'please draw the word "house"'
    # 128 samples on 3 slots.
    assert rows.most == 43


def test_fixed_rows_are_not_measured(tmp_path):
    assert worker_settings(tmp_path, "cluster.rows=16").rows is None
    assert load_config("words-nft", ["cluster.rows=16"]).cluster.spot_nodes()[0].rows == 16


@pytest.mark.parametrize(
    ("overrides", "share"),
    [
        ([], 171),
        (["cluster.spot=0"], 512),
        (["cluster.spot=7"], 64),
        (["cluster.spot=7", "cluster.slots=2"], 32),
        (["pipeline.tag=false"], 256),
        (["cluster.spot=1000"], 1),
    ],
)
def test_no_slot_takes_more_than_its_share_of_an_iteration(overrides, share):
    assert load_config("words-large-nft", overrides).samples_per_slot == share


def test_deterministic_run_has_a_fixed_number_that_it_keeps_when_it_is_resumed(tmp_path):
    config = load_config("words-nft", ["deterministic=true", "explore.enabled=off"])
    assert config.cluster.rows == 8
    before = config.model_dump(mode="json")
    after = resumed_config(before, ["cluster.rows=auto"])
    assert after.cluster.rows == config.cluster.rows
    check_unchanged(before, after.model_dump(mode="json"))
    other = resumed_config(before, ["cluster.rows=16"])
    with pytest.raises(ConfigError, match=r"cluster.rows \(8 -> 16\)"):
        check_unchanged(before, other.model_dump(mode="json"))


def test_paced_and_simulated_runs_take_what_their_profile_finds_efficient(tmp_path):
    profile = Profile.load(PACE)
    efficient = efficient_batch(profile, Operation.DENOISE_STEP)
    config = load_config("words-large-nft", [f"cluster.pace={PACE}"])
    assert config.cluster.rows == efficient
    assert simulated(load_config("words-large-nft"), profile).cluster.rows == efficient
    assert load_config("words-large-nft", [f"cluster.pace={PACE}", "cluster.rows=3"]).cluster.rows == 3


@pytest.mark.parametrize(("spot", "same"), [(2, True), (8, True), (600, False), (60_000, False)])
def test_simulated_small_fleet_reports_progress_as_a_run_does_and_a_large_one_less_often(spot, same):
    config = load_config("words-large-nft", ["cluster.reserved=4", f"cluster.spot={spot}"])
    seen = simulated(config, Profile.load(PACE)).cluster
    assert (seen.heartbeat_s == config.cluster.heartbeat_s) == same
    assert seen.heartbeat_s >= config.cluster.heartbeat_s
    assert seen.silence_s >= 4 * seen.heartbeat_s, "a worker between two heartbeats would count as silent"


def test_simulated_nodes_have_rows_whatever_the_recipe_says():
    profile = Profile.load(PACE)
    for recipe in set(recipe_names()) - REAL_RECIPES.keys():
        joined = recipe if recipe.startswith(("words", "scenes", "demo")) else f"words-large-nft+{recipe}"
        assert all(spec.fixed_rows for spec in simulated(load_config(joined), profile).cluster.spot_nodes())
    with pytest.raises(ConfigError, match="node spot-1 has no fixed number of rows"):
        assert load_config("words-nft").cluster.spot_nodes()[0].fixed_rows


def test_value_that_is_no_row_count_is_refused():
    with pytest.raises(ConfigError, match=r"rows to 'many', but .* a whole number of rows, at least 1, or auto"):
        load_config("words-nft", ["cluster.rows=many"])
