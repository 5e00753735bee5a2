"""Recipes: shipped recipes load, `extends` merges, overrides win."""

from pathlib import Path

import pytest
from recipe_groups import FLEET_RECIPES, REAL_RECIPES

from spotlight.compute.train.config import FlowGrpoConfig, NftConfig
from spotlight.config import load_config, recipe_names
from spotlight.control.explore.config import PlanKind, Timing
from spotlight.control.pipeline.tsp import BatchesOver
from spotlight.core.errors import ConfigError, InputError
from spotlight.core.types import SamplerKind

SETUPS = {
    "reserved-only": (4, 0, 4, False),
    "reserved-explore": (4, 0, 4, True),
    "spot-no-explore": (4, 8, 4, False),
    "explore-inline": (4, 8, 4, True),
    "on-demand": (12, 0, 4, False),
    "on-demand-all": (12, 0, 12, False),
    "on-demand-explore": (12, 0, 4, True),
    "spotlight": (4, 8, 4, True),
    "spotlight-fixed": (4, 8, 4, True),
    "spotlight-pipelined": (4, 8, 4, True),
    "pipelined": (4, 8, 4, False),
    "colocated": (12, 0, 12, False),
    "disaggregated-serial": (4, 8, 4, False),
}
"""Reserved, spot and training slots, and whether seeds are explored."""


def recipe(folder: Path, name: str, text: str) -> str:
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return str(path)


def test_every_shipped_recipe_loads():
    assert {"words-nft", "words-large-nft", "scenes-nft"} <= set(recipe_names())
    for name in set(recipe_names()) - {"demo", *SETUPS, *REAL_RECIPES, *FLEET_RECIPES}:
        config = load_config(name)
        assert name.startswith(config.model.name)
        assert name.removeprefix(f"{config.model.name}-") == config.algorithm.kind.replace("_", "-")


@pytest.mark.parametrize("setup", SETUPS)
@pytest.mark.parametrize("learns", ["demo", "words-large-nft", "scenes-nft"])
def test_setup_joined_to_a_recipe_changes_machines_and_exploration_only(learns, setup):
    plain, joined = load_config(learns), load_config(f"{learns}+{setup}")
    cluster = joined.cluster
    assert (cluster.reserved, cluster.spot, cluster.gang, joined.explores) == SETUPS[setup]
    for section in ("model", "data", "reward", "algorithm", "rollout", "eval", "iterations"):
        assert getattr(joined, section) == getattr(plain, section)
    batched = {"micro_batch": plain.train.micro_batch, "batches_over": plain.train.batches_over}
    assert joined.train.model_copy(update=batched) == plain.train
    assert (cluster.rows, joined.explore.seeds) == (plain.cluster.rows, plain.explore.seeds)


def test_setups_differ_in_how_they_explore():
    chosen = {name: load_config(f"words-large-nft+{name}").explore for name in SETUPS}
    assert (chosen["explore-inline"].timing, chosen["spotlight"].timing) == (Timing.INLINE, Timing.BESIDE)
    assert (chosen["spotlight"].plan, chosen["spotlight-fixed"].plan) == (PlanKind.BANDIT, PlanKind.FIXED)


def test_setups_differ_in_what_they_let_overlap():
    serial, pool, piped = (
        load_config(f"words-large-nft+{name}") for name in ("disaggregated-serial", "colocated", "spotlight-pipelined")
    )
    switches = [(each.pipeline.gap, each.pipeline.tag, each.pipeline.asynchrony) for each in (serial, pool, piped)]
    assert switches == [(False, False, False), (False, True, False), (True, True, True)]
    assert (serial.train.batches_over, serial.train.micro_batch) == (BatchesOver.SAMPLES, "auto")
    assert piped.train.batches_over is BatchesOver.PAIRS


def test_joined_recipes_merge_from_left_to_right_and_overrides_come_last(tmp_path):
    mine = recipe(tmp_path, "mine", "extends: words-nft\ncluster: {reserved: 2, spot: 5, rows: 3}\n")
    assert load_config(f"{mine}+reserved-only").cluster.spot == 0
    assert load_config(f"reserved-only+{mine}", ["cluster.gang=2"]).cluster.spot == 5
    assert load_config(f"{mine}+reserved-only").cluster.rows == 3
    assert load_config(f"{mine}+reserved-only", ["cluster.reserved=6"]).cluster.reserved == 6


def test_file_with_a_plus_in_its_name_is_one_recipe(tmp_path):
    assert load_config(recipe(tmp_path, "this+that", "seed: 5\n")).seed == 5


@pytest.mark.parametrize(
    ("joined", "words"),
    [
        ("words-nft+spotligt", "no recipe 'spotligt': did you mean 'spotlight"),
        ("words-nft+", r"'words-nft\+' has an empty part"),
        ("spotlight+spotlight", "one part twice"),
        ("words-nft+BAD+spotlight", "the recipe '.*bad.yaml' sets 'cluster.rowz', which does not exist"),
        ("words-flow-grpo+spotlight", "rollout.initial_noise is shared"),
    ],
)
def test_mistake_in_a_joined_recipe_names_its_part(tmp_path, joined, words):
    bad = recipe(tmp_path, "bad", "cluster: {rowz: 3}\n")
    with pytest.raises(ConfigError, match=words):
        load_config(joined.replace("BAD", bad))


def test_extends_keeps_what_the_child_does_not_set(tmp_path):
    recipe(tmp_path, "base", "iterations: 7\nrollout: {group_size: 4, steps: 6}\nalgorithm: {beta: 2.0}\n")
    child = recipe(
        tmp_path, "child", "extends: base.yaml\nrollout: {group_size: 8}\nalgorithm: {kind: nft, kl_weight: 0.5}\n"
    )
    config = load_config(child)
    assert (config.iterations, config.rollout.group_size, config.rollout.steps) == (7, 8, 6)
    assert isinstance(config.algorithm, NftConfig)
    assert (config.algorithm.beta, config.algorithm.kl_weight) == (2.0, 0.5)


def test_a_file_can_extend_a_shipped_recipe(tmp_path):
    config = load_config(recipe(tmp_path, "mine", "extends: words-nft\nseed: 3\n"))
    assert config == load_config("words-nft", ["seed=3"])
    assert config != load_config("words-nft")


def test_another_loss_replaces_the_section_of_the_parent(tmp_path):
    window = "rollout: {sampler: flow_sde, noise_level: 0.7, window_size: 2}\n"
    recipe(tmp_path, "base", "algorithm: {kind: nft, beta: 2.0, advantage_clip: 3.0}\n" + window)
    child = recipe(tmp_path, "child", "extends: base.yaml\nalgorithm: {kind: flow_grpo, clip: 0.01}\n")
    assert load_config(child).algorithm == FlowGrpoConfig(clip=0.01)
    assert load_config(str(tmp_path / "base.yaml"), ["algorithm.kind=flow_grpo"]).algorithm == FlowGrpoConfig()


@pytest.mark.parametrize(
    ("override", "words"),
    [
        ("algorithm.kind=flow_grpo", "without a window"),
        ("reward.name=ocr_gradd", "did you mean 'ocr_graded'"),
        ("reward.judge=ocr_juge", "did you mean 'ocr_judge'"),
        ("model.name=wrods", "did you mean 'words'"),
        ("data.prompts=tests", "did you mean 'test'"),
        ("data.prompts=nowhere.txt", "does not exist"),
        ("data.held_out=tset", "did you mean 'test'"),
        ("data.held_out=nowhere.jsonl", "does not exist"),
    ],
)
def test_names_that_do_not_exist_are_refused_when_the_recipe_is_read(override, words):
    with pytest.raises(InputError, match=words):
        load_config("words-nft", [override])


def test_overrides_win_and_the_last_of_several_wins():
    config = load_config("words-nft", ["rollout.group_size=4", "rollout.group_size=6", "train.lora.rank=2", "seed=9"])
    assert (config.rollout.group_size, config.seed) == (6, 9)
    assert config.train.lora is not None
    assert config.train.lora.rank == 2
    assert config.rollout.prompts == load_config("words-nft").rollout.prompts


def test_override_values_are_yaml():
    overrides = [
        "rollout.sampler=flow_sde",
        "rollout.noise_level=0.7",
        "rollout.window_size=2",
        "rollout.window_range=[1, 5]",
        "model.tf32=true",
        "reward.name=package.module:function",
        "train.lora=null",
    ]
    config = load_config("words-nft", overrides)
    assert (config.rollout.sampler, config.rollout.window_range) == (SamplerKind.FLOW_SDE, (1, 5))
    assert config.model.tf32
    assert config.reward.name == "package.module:function"
    assert config.train.lora is None


def test_exponents_without_a_dot_are_numbers(tmp_path):
    # YAML 1.1 reads 1e-4 as a string.
    assert load_config("words-nft", ["train.lr=1e-4"]).train.lr == 1e-4
    assert load_config(recipe(tmp_path, "r", "train: {lr: 3e-5}\n")).train.lr == 3e-5


def test_an_algorithm_section_without_kind_is_the_default_loss(tmp_path):
    assert load_config(recipe(tmp_path, "r", ""), ["algorithm.beta=0.5"]).algorithm == NftConfig(beta=0.5)


def test_exploration_can_be_switched_with_the_words_that_yaml_reads_as_booleans():
    assert not load_config("words-nft", ["explore.enabled=off"]).explores
    assert load_config("words-nft", ["explore.enabled=on"]).explores
    assert load_config("words-nft").explores
    assert not load_config("words-flow-grpo").explores


def test_exploring_a_shared_start_by_initial_noise_is_refused():
    with pytest.raises(ConfigError, match=r"rollout.initial_noise is shared.*explore.noise to path"):
        load_config("words-flow-grpo", ["explore.enabled=on"])
    steps = load_config("words-flow-grpo").rollout.steps
    load_config("words-flow-grpo", ["explore.enabled=on", "explore.noise=path", f"explore.steps={steps}"])
    with pytest.raises(ConfigError, match=r"explore.noise is path .* cannot draw the noise of the whole path"):
        load_config("words-nft", ["explore.noise=path", "explore.steps=4"])


@pytest.mark.parametrize(
    ("recipe", "override"), [("words-nft", "explore.enabled=off"), ("words-flow-grpo", "explore.enabled=auto")]
)
def test_baseline_of_audits_in_a_run_that_has_none_is_refused(recipe, override):
    with pytest.raises(ConfigError, match=r"explore\.baseline is audited but explore\.enabled is (off|auto) with"):
        load_config(recipe, ["explore.baseline=audited", override])
    assert load_config("words-nft", ["explore.baseline=audited"]).explore.baseline.value == "audited"
    assert load_config(recipe, [override]).explore.baseline.value == "kept"


def test_trace_that_kills_nodes_the_run_does_not_have_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "foreign.csv").write_text("time_s,node,event,seconds\n0,gpu-a,up,0\n")
    with pytest.raises(ConfigError, match=r"node 'gpu-a' but the run's spot nodes are spot-1 to spot-2"):
        load_config("demo", [f"market.trace={tmp_path}/foreign.csv"])
    with pytest.raises(ConfigError, match="no trace 'dmo'"):
        load_config("demo", ["market.trace=dmo"])


def test_trace_of_more_nodes_than_the_run_has_is_replayed_for_those_it_has():
    config = load_config("demo", ["cluster.spot=1"])
    assert config.market.replayed(config.cluster.spot).nodes == ["spot-1"]


def test_trace_is_not_used_by_a_run_without_spot_nodes():
    config = load_config("demo+reserved-only", ["market.trace=storm", "market.start_h=1000"])
    assert config.market.replayed(config.cluster.spot) is None


def test_deterministic_run_with_batches_that_follow_the_clock_is_refused():
    with pytest.raises(ConfigError, match="micro_batch is auto"):
        load_config("words-nft", ["deterministic=true", "train.micro_batch=auto"])
    assert load_config("words-nft", ["train.micro_batch=auto"]).train.micro_batch == "auto"


def test_deterministic_run_with_a_plan_that_follows_the_clock_is_refused():
    with pytest.raises(ConfigError, match=r"explore.plan is bandit, which follows measured times"):
        load_config("words-nft", ["deterministic=true", "explore.plan=bandit"])


def test_training_on_parts_with_advantages_of_the_whole_iteration_is_refused():
    with pytest.raises(ConfigError, match=r"pipeline.gap is on but algorithm.advantage.std is iteration"):
        load_config("words-nft", ["pipeline.gap=true", "algorithm.advantage.std=iteration"])
    for std in ("lagged", "group"):
        assert load_config("words-nft", ["pipeline.gap=true", f"algorithm.advantage.std={std}"]).pipeline.gap


def test_trainers_that_only_train_without_a_worker_that_rolls_out_are_refused():
    with pytest.raises(ConfigError, match=r"pipeline.tag is off .* none rolls out"):
        load_config("words-nft+reserved-only", ["pipeline.tag=false", "cluster.gang=4"])
    for more in ("cluster.spot=1", "cluster.gang=3"):
        settings = ["pipeline.tag=false", "cluster.gang=4", more]
        assert not load_config("words-nft+reserved-only", settings).pipeline.tag


@pytest.mark.parametrize("share", ["0", "-0.5", "1.1"])
def test_stale_share_that_no_iteration_can_have_is_refused(share):
    with pytest.raises(ConfigError, match=r"pipeline\.stale_share to .*input should be"):
        load_config("words-nft", [f"pipeline.stale_share={share}"])


@pytest.mark.parametrize("setting", ["explore.overrun", "market.fallback_s"])
@pytest.mark.parametrize("value", ["-1", "often", ".nan", ".inf", "true", "[1]"])
def test_value_that_is_neither_a_number_nor_auto_is_refused_in_one_sentence(setting, value):
    with pytest.raises(ConfigError) as refusal:
        load_config("words-nft", [f"{setting}={value}"])
    message = str(refusal.value)
    assert message.startswith(f"the override '{setting}={value}' sets {setting} to ")
    assert "it takes a finite number, at least 0, or auto; " in message
    assert message.endswith(f"with {setting}=VALUE.")


def test_number_may_stand_where_auto_may():
    config = load_config("words-nft", ["explore.overrun=1", "market.fallback_s=1e3"])
    assert (config.explore.overrun, config.market.fallback_s) == (1.0, 1000.0)
    assert load_config("words-nft", ["market.fallback_s=null"]).market.fallback_s is None
