"""A worker fits itself to the memory of its slot: rows, recomputed blocks, and the place of the VAE."""

from dataclasses import replace

import msgspec
import torch
from setting_observers import launch_of
from tiny_qwen_image import qwen_scheduler, tiny_transformer, tiny_vae

from spotlight.compute.memory.choices import TrainingLimits
from spotlight.compute.memory.memory_plan import rollout_plan
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.loaded import load_source
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.models.sources import resolve
from spotlight.config import load_config
from spotlight.core.types import Size
from spotlight.node import equipment
from spotlight.node.equipment import equip, fit_to_memory, workload_of
from spotlight.node.launch import SlotDevice, WorkerLaunch
from spotlight.node.worker_settings import WorkerSettings

TINY = (
    "model.name=random-tiny:qwen-image", "model.device=cpu", "data.size=64x64", "reward.name=jpeg", "cluster.rows=4",
    "train.micro_batch=auto", "train.gradient_checkpointing=auto",
)  # fmt: skip


def slot(folder, *settings: str, trains: bool = True) -> tuple[WorkerLaunch, WorkerSettings]:
    found = launch_of(load_config("qwen-image-ocr-512", [*TINY, *settings]), folder)
    launch = msgspec.structs.replace(found.for_worker(0), trains=trains)
    return launch, WorkerSettings.model_validate_json(found.settings)


def with_memory(launch: WorkerLaunch, memory: int | None) -> WorkerLaunch:
    return msgspec.structs.replace(launch, device=SlotDevice(memory=memory))


def adapter_of(settings: WorkerSettings) -> PipelineAdapter:
    adapter = load_source(resolve(settings.model.name), settings.model, "cpu").adapter
    assert isinstance(adapter, PipelineAdapter)
    return adapter


def test_less_memory_recomputes_more_blocks_and_allows_fewer_rows(tmp_path):
    launch, settings = slot(tmp_path)
    adapter = adapter_of(settings)
    found: list[TrainingLimits] = []
    largest = 2**32
    for memory in (largest, 430 * 2**20, 2**20):
        limits = fit_to_memory(with_memory(launch, memory), settings, adapter)
        assert limits is not None
        found.append(limits)
    assert [each.recomputed for each in found] == sorted(each.recomputed for each in found)
    assert found[0].recomputed == 0
    assert found[-1].recomputed == 2
    assert found[0].most is not None
    assert found[0].most > 1
    assert found[-1].most == 1
    # On a CPU no memory is divided.
    unlimited = fit_to_memory(launch, settings, adapter)
    assert unlimited is not None
    assert (unlimited.first, unlimited.most, unlimited.recomputed) == (1, None, 0)


def test_worker_that_only_rolls_out_has_no_limits_and_offloads_the_vae_if_it_must(tmp_path, monkeypatch):
    launch, settings = slot(tmp_path, trains=False)
    adapter = adapter_of(settings)
    offloaded: list[bool] = []
    monkeypatch.setattr(PipelineAdapter, "offload_vae", lambda self: offloaded.append(True))
    needed = rollout_plan(workload_of(settings), 4).total
    assert fit_to_memory(with_memory(launch, needed), settings, adapter) is None
    assert offloaded == []
    fit_to_memory(with_memory(launch, needed - 1), settings, adapter)
    assert offloaded == [True]


def test_equipped_trainer_uses_the_limits_of_its_memory(tmp_path, monkeypatch):
    launch, settings = slot(tmp_path, "train.micro_batch=2")
    monkeypatch.setattr(equipment, "_read_embeddings", lambda *_: None)
    made = equip(with_memory(launch, 2**20), settings, lambda message: None)
    assert made.adapter.transformer.is_gradient_checkpointing
    made = equip(with_memory(launch, 2**32), settings, lambda message: None)
    assert not made.adapter.transformer.is_gradient_checkpointing


def test_offloaded_vae_decodes_the_same_images_and_returns_home():
    # To torch cpu:0 is another device than cpu, so that the weights are moved as to a GPU.
    adapter = QwenImageAdapter(tiny_transformer().eval(), tiny_vae(), qwen_scheduler(), device="cpu:0")
    size, moved = Size(64, 64), []
    x0_BSC = torch.randn(2, *adapter.latent_shape(size), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = adapter.decode(x0_BSC, size)
        adapter.offload_vae()
        home = [tensor.data_ptr() for tensor in adapter._vae.parameters()]
        first = next(adapter._vae.parameters())
        adapter._vae.decoder.register_forward_pre_hook(lambda *_: moved.append(first.data_ptr()))
        after = adapter.decode(x0_BSC, size)
    assert torch.equal(before, after)
    # Uploaded once for both images.
    assert len({*moved}) == 1
    assert home[0] not in moved
    assert [tensor.data_ptr() for tensor in adapter._vae.parameters()] == home


def test_settings_of_the_plan_reach_the_worker(tmp_path):
    config = load_config("qwen-image-ocr-512", [*TINY])
    _, settings = slot(tmp_path)
    found = workload_of(settings)
    assert found is not None
    longest = "a street sign that says" + "x" * 300
    expected = config.workload(facts_of(config.model.name), longest)
    assert expected.rollouts.text_tokens > found.rollouts.text_tokens
    width = found.rollouts.text_tokens
    assert found == replace(expected, rollouts=replace(expected.rollouts, text_tokens=width))
