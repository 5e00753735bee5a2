"""Memory plans: their lines are the bytes of real tensors, and choices and refusals follow from them."""

import json
from dataclasses import replace

import diffusers
import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from tiny_models import RUN_SEED

from benchmarks.memory.live_bytes import LiveBytes
from spotlight.assets import asset
from spotlight.compute.memory.choices import (
    busy_rows,
    choose_training,
    offloads_vae,
    recomputed_blocks,
    rollout_options,
    training_layout,
    training_options,
)
from spotlight.compute.memory.memory_load import RolloutLoad, Workload
from spotlight.compute.memory.memory_plan import (
    GIB,
    LINES,
    OVERHEAD,
    SETS_HELD,
    STAGES,
    TrainingChoice,
    encoder_plan,
    rollout_plan,
    training_plan,
)
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.config import ModelConfig
from spotlight.compute.models.family_registry import FAMILIES
from spotlight.compute.models.loaded import load_source
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.sources import resolve
from spotlight.compute.train.config import FlowGrpoConfig, LoraConfig, NftConfig, TrainConfig
from spotlight.compute.train.recomputation import blocks_of
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident

GPU = ModelConfig(name="random:qwen-image", device="cuda")
LORA = LoraConfig(rank=64, alpha=128.0)


def work_of(
    model: ModelConfig = GPU,
    train: TrainConfig | None = None,
    algorithm=None,
    edge: int = 512,
    stale: bool = False,
    **given,
) -> Workload:
    facts = facts_of(model.name)
    size = facts.size(f"{edge}x{edge}" if facts.world is None else None)
    rollouts = RolloutLoad(**{"size": size, "text_tokens": 48, **given})
    return Workload.of(facts, model, train or TrainConfig(lora=LORA), algorithm or NftConfig(), rollouts, stale)


# --- lines against tensors ---


@pytest.mark.parametrize("name", [f"random-tiny:{family}" for family in sorted(FAMILIES)])
@pytest.mark.parametrize("lora", [None, LoraConfig(rank=3)])
@pytest.mark.parametrize(
    ("algorithm", "stale"),
    [(NftConfig(), False), (NftConfig(kl_weight=0.1), True), (FlowGrpoConfig(kl_weight=0.1), True)],
)
def test_weights_of_a_rank_are_the_bytes_of_its_tensors(name, lora, algorithm, stale):
    model, train = ModelConfig(name=name), TrainConfig(lora=lora, micro_batch=2)
    adapter = load_source(resolve(name), model, "cpu").adapter
    trainer = Trainer(adapter, train, algorithm, RUN_SEED, stale)
    plan = training_plan(work_of(model, train, algorithm, 64, stale), TrainingChoice(rows=2, recomputed=0))
    trained = sum(parameter.nbytes for parameter in trainer.sets.theta.values())
    assert isinstance(adapter, PipelineAdapter)
    state = [*adapter.transformer.parameters(), *adapter.transformer.buffers()]
    frozen = sum(tensor.nbytes for tensor in state if not tensor.requires_grad)
    assert plan.of("adapters") == (trained if lora else 0)
    assert plan.of("base weights") == frozen + (0 if lora else trained)
    assert plan.of("weight sets") == sum(t.nbytes for held in trainer.sets.names for t in trainer.sets[held].values())
    assert plan.of("gradients") == trained
    assert plan.of("optimizer") == 2 * trained
    assert plan.of("VAE") == sum(tensor.nbytes for tensor in adapter._vae.state_dict().values())


def test_optimizer_step_holds_one_more_copy_of_the_trained_weights_than_its_moments():
    """The plan counts it in place of activations; `foreach` is what AdamW does on a GPU."""
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizer = torch.optim.AdamW([parameter], foreach=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    with LiveBytes() as live:
        optimizer.step()
    assert live.peak == pytest.approx(parameter.nbytes, abs=64)


def test_fp8_previews_hold_the_layers_of_the_blocks_once_more_in_a_byte_per_weight():
    work = work_of(previews=True, fp8=True)
    taken = rollout_plan(work, 4).of("fp8 weights")
    assert taken == training_plan(work, TrainingChoice(rows=4, recomputed=0)).of("fp8 weights")
    assert rollout_plan(work_of(previews=True), 4).of("fp8 weights") == 0
    with torch.device("meta"):
        blocks = blocks_of(QwenImageTransformer2DModel(num_layers=1))
    layers = [layer for layer in blocks[0].modules() if isinstance(layer, torch.nn.Linear)]
    assert taken == pytest.approx(60 * sum(layer.weight.numel() for layer in layers), rel=0.01)


def test_search_of_the_micro_batch_holds_a_second_gradient():
    fixed, searched = (work_of(train=TrainConfig(lora=LORA, micro_batch=rows)) for rows in (4, "auto"))
    choice = TrainingChoice(rows=4, recomputed=60)
    assert training_plan(searched, choice).of("gradients") == 2 * training_plan(fixed, choice).of("gradients")


def test_published_sets_are_as_many_as_a_worker_holds_and_none_on_a_cpu():
    eager = GPU.model_copy(update={"compile": False})
    on_gpu, on_cpu = work_of(eager), work_of(replace_device(GPU, "cpu"))
    assert rollout_plan(on_gpu, 4).of("published sets") == SETS_HELD * on_gpu.trained_bytes
    assert rollout_plan(on_cpu, 4).of("published sets") == 0
    # Previews hold two more sets in half the bytes.
    assert rollout_plan(work_of(eager, previews=True), 4).of("published sets") == (SETS_HELD + 1) * on_gpu.trained_bytes
    # Graphs compute with a copy of the set in use.
    assert rollout_plan(work_of(GPU), 4).of("published sets") == (SETS_HELD + STAGES) * on_gpu.trained_bytes
    resident = Resident(torch.nn.Linear(2, 2), "base", SETS_HELD)
    assert resident.capacity == 3


def replace_device(model: ModelConfig, device: str) -> ModelConfig:
    return model.model_copy(update={"device": device})


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_decoding_takes_the_maps_that_the_released_vae_holds(name):
    family, work = FAMILIES[name], work_of(ModelConfig(name=f"random:{name}"), edge=256)
    settings = json.loads(asset(f"random/full/{name}.json").read_text())["vae"]
    with torch.device("meta"):
        vae = getattr(diffusers, family.vae)(**settings)
        latents = torch.zeros(1, 16, *((1,) if name == "qwen-image" else ()), 32, 32)
    with LiveBytes() as live, torch.no_grad():
        vae.decode(latents)
    assert work.decoding_bytes == pytest.approx(live.peak, rel=0.01)
    # On a GPU cuDNN's workspace is added.
    assert replace(work, on_gpu=True).decoding_bytes > work.decoding_bytes


def test_guidance_that_needs_two_halves_doubles_the_activations_of_training():
    plain, guided = work_of(), work_of(guidance=4.0)
    assert guided.training_bytes(4, 0) == pytest.approx(2 * plain.training_bytes(4, 0), rel=0.01)
    assert guided.forward_bytes(4) == plain.forward_bytes(4)
    flux = ModelConfig(name="random:flux", device="cuda")
    assert work_of(flux, guidance=4.0).training_bytes(4, 0) == work_of(flux).training_bytes(4, 0)
    sd3 = ModelConfig(name="random:sd3", device="cuda")
    assert work_of(sd3, guidance=4.0).forward_bytes(4) == pytest.approx(2 * work_of(sd3).forward_bytes(4), rel=0.01)


def test_encoder_has_a_plan_of_its_own_and_tiny_families_have_none():
    plan = encoder_plan(work_of())
    assert plan is not None
    assert plan.of("text encoders") == 2 * 8_292_166_656
    assert encoder_plan(work_of(ModelConfig(name="words"), TrainConfig())) is None


def test_every_line_has_a_place_in_the_table():
    plans = [training_plan(work_of(), TrainingChoice(rows=1, recomputed=0)), rollout_plan(work_of(), 1)]
    assert {line.name for plan in plans for line in plan.lines} < {*LINES}
    assert all(plan.total - plan.allocated == plan.of(OVERHEAD) > 0 for plan in plans)


# --- choices ---


def auto(**given) -> TrainConfig:
    return TrainConfig.model_validate({"lora": LORA, "micro_batch": "auto", "gradient_checkpointing": "auto"} | given)


def test_large_gpu_recomputes_nothing_and_smaller_ones_as_few_blocks_as_they_need():
    train, work = auto(), work_of(train=auto())
    found = {memory: choose_training(work, train, GPU, memory * GIB) for memory in (139, 96, 80, 66)}
    assert [each.recomputed for each in found.values()] == sorted(each.recomputed for each in found.values())
    assert found[139].recomputed == 0
    assert 0 < found[96].recomputed < found[80].recomputed <= 60
    assert all(each.first == busy_rows(work) == 4 for each in found.values())
    for memory, each in found.items():
        assert each.plan.total <= memory * GIB
        one_less = TrainingChoice(rows=each.first, recomputed=each.recomputed - 1)
        assert not each.recomputed or training_plan(work, one_less).total > memory * GIB


def test_rows_are_bounded_by_the_memory_and_halved_where_it_is_short():
    train = auto(gradient_checkpointing=False)
    work = work_of(train=train)
    large, small = (choose_training(work, train, GPU, memory * GIB) for memory in (139, 90))
    assert (large.first, small.first) == (4, 2)
    assert large.most > large.first
    choice = TrainingChoice(rows=large.most + 1, recomputed=0)
    assert training_plan(work, choice).total > 139 * GIB >= training_plan(work, replace(choice, rows=large.most)).total


def test_settings_are_kept_even_where_they_do_not_fit():
    train = TrainConfig(lora=LORA, micro_batch=16, gradient_checkpointing=10)
    model = GPU.model_copy(update={"offload_vae": False})
    found = choose_training(work_of(train=train), train, model, 20 * GIB)
    assert (found.first, found.recomputed, found.offloads_vae) == (16, 10, False)
    assert found.plan.total > 20 * GIB


def test_vae_is_offloaded_only_where_that_makes_the_difference():
    work = work_of()
    resident, offloaded = rollout_plan(work, 4).total, rollout_plan(work, 4, offloads_vae=True).total
    assert [offloads_vae(work, GPU, 4, memory) for memory in (resident, resident - 1, None)] == [False, True, False]
    # The VAE is on the device while it decodes, so that only rollouts beside it gain.
    assert offloaded <= resident
    always, never = (GPU.model_copy(update={"offload_vae": value}) for value in (True, False))
    assert offloads_vae(work, always, 4, None)
    assert not offloads_vae(work, never, 4, 0)


def test_numbers_of_recomputed_blocks_follow_the_setting():
    assert [recomputed_blocks(setting, 60) for setting in (True, False, 0, 7, 99, "auto")] == [60, 0, 0, 7, 60, None]


def test_unlimited_memory_recomputes_nothing_by_itself():
    found = choose_training(work_of(train=auto()), auto(), GPU, None)
    assert (found.recomputed, found.offloads_vae) == (0, False)


# --- layout ---


def test_base_is_replicated_where_it_fits_and_sharded_where_it_does_not():
    work, train = work_of(train=auto()), auto()
    assert training_layout(work, train, GPU, 4, 80 * GIB).kind == "replicated"
    small = training_layout(work, train, GPU, 4, 40 * GIB)
    assert small.kind == "sharded"
    assert "of 40.0 GiB, sharded over 4 ranks" in small.reason
    assert small.reason.endswith("which fits")


def test_one_rank_has_nothing_to_shard_and_too_few_ranks_say_what_is_missing():
    work, train = work_of(train=auto()), auto()
    assert training_layout(work, train, GPU, 1, 10 * GIB).kind == "replicated"
    assert training_layout(work, train, GPU, 2, 20 * GIB).reason.endswith("GiB too much")


def test_full_fine_tuning_shards_weights_gradients_and_moments():
    train = TrainConfig(micro_batch=1, gradient_checkpointing=True)
    work = work_of(GPU.model_copy(update={"dtype": "float32"}), train)
    choice = TrainingChoice(rows=1, recomputed=60)
    whole, parts = training_plan(work, choice), training_plan(work, choice, shards=8)
    for line in ("base weights", "gradients", "optimizer", "weight sets"):
        assert whole.of(line) / 8 < parts.of(line) < whole.of(line) / 5
    assert parts.of("activations") < whole.of("activations")


# --- what would fit ---


def test_options_that_fit_are_named_with_their_totals():
    train = TrainConfig(lora=LORA, micro_batch=16)
    limits = choose_training(work_of(train=train), train, GPU, 0)
    memory = 100 * GIB
    options = training_options(work_of(train=train), train, limits, memory)
    assert options[0].startswith("train.gradient_checkpointing=true (")
    assert options[1].startswith("train.micro_batch=2 (")
    assert all(float(option.rpartition("(")[2].split()[0]) * GIB <= memory for option in options)


def test_full_fine_tuning_that_does_not_fit_is_told_to_train_adapters_or_to_shard():
    train = TrainConfig(micro_batch=1, gradient_checkpointing=True)
    model = GPU.model_copy(update={"dtype": "float32"})
    work = work_of(model, train)
    limits = choose_training(work, train, model, 139 * GIB)
    options = training_options(work, train, limits, 139 * GIB)
    adapters = "train.lora.rank=32 and model.dtype=bfloat16"
    assert [option.partition(" (")[0] for option in options] == [
        adapters,
        "train.parallel=sharded with pipeline.tag=false over 8 ranks",
    ]
    assert rollout_options(work, 4, True, 139 * GIB)[0].startswith(f"{adapters} (")


def test_rollout_worker_that_does_not_fit_is_told_to_use_fewer_rows():
    work = work_of(edge=1280)
    memory = rollout_plan(work, 8).total
    assert rollout_options(work, 16, False, memory) == [f"cluster.rows=8 ({memory / GIB:.1f} GiB)"]
    assert rollout_options(work, 1, True, GIB) == []
