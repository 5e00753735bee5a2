"""Sharding installed in one model: what it leaves unchanged, what it works with, what it refuses."""

import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from diffusers import FluxTransformer2DModel, QwenImageTransformer2DModel
from store_thread import StoreThread
from tiny_models import PROMPTS, SIZE, tiny_adapter
from torch import Tensor, nn

from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.parallel.group import CrewBroken, CrewGroup, DeviceKind, form
from spotlight.compute.parallel.sharding import Sharding
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.core.crew_messages import GroupToken
from spotlight.core.errors import ConfigError, EnvironmentProblem
from spotlight.core.types import NodeId, WorkerId

TOKEN = GroupToken(NodeId("spot-1.1"), 3)
MEMBERS = (WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/1.1"))
Spoil = Callable[[Any], None]


@pytest.fixture
def crew(tmp_path) -> Iterator[list[CrewGroup]]:
    """Two ranks in two threads of this process."""
    store = StoreThread(tmp_path / "store")
    store.open(TOKEN)
    with ThreadPoolExecutor(2) as threads:
        path = str(store.store.path)
        groups = list(threads.map(lambda rank: form(TOKEN, MEMBERS, rank, path, limit_s=30.0), range(2)))
    yield [group for group in groups if group is not None]
    for group in groups:
        if group is not None:
            group.drop()
    store.stop()


@torch.no_grad()
def velocity(adapter: PixelAdapter) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(len(PROMPTS), *adapter.latent_shape(SIZE), generator=generator)
    sigma = torch.linspace(0.2, 0.9, len(PROMPTS))
    return adapter.velocity(x, sigma, adapter.collate(adapter.encode(PROMPTS)), None, 1.0, SIZE)


def together(crew: list[CrewGroup], adapters: list[PixelAdapter]) -> list[Tensor]:
    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(velocity, adapters))


def replicas(prepare: Callable[[nn.Module], None]) -> list[PixelAdapter]:
    adapters = [tiny_adapter() for _ in range(2)]
    for adapter in adapters:
        prepare(adapter.transformer)
    return adapters


def with_lora(transformer: nn.Module) -> None:
    """Adapters that have an effect; initial ones have none."""
    select_trainable(transformer, LoraConfig(rank=2, alpha=4.0), tiny_adapter().lora_targets, seed=5)
    generator = torch.Generator().manual_seed(6)
    for name, parameter in transformer.named_parameters():
        if "lora_B" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator)


def with_compiled_blocks(transformer: Any) -> None:
    for block in transformer.transformer_blocks:
        block.compile(backend="eager")


@pytest.mark.parametrize(
    "prepare", [lambda transformer: None, with_lora, pytest.param(with_compiled_blocks, marks=pytest.mark.slow)]
)
def test_two_ranks_compute_what_one_does_and_unbinding_restores_it_exactly(crew, prepare):
    adapters = replicas(prepare)
    expected = velocity(adapters[0])
    shardings = [Sharding(adapter.transformer) for adapter in adapters]
    assert torch.equal(velocity(adapters[0]), expected)
    for sharding, group in zip(shardings, crew, strict=True):
        sharding.bind(group)
    for made in together(crew, adapters):
        torch.testing.assert_close(made, expected, atol=1e-5, rtol=0)
    for sharding in shardings:
        sharding.bind(None)
    assert torch.equal(velocity(adapters[0]), expected)


def test_binding_touches_no_weight(crew):
    adapter = tiny_adapter()
    before = {name: tensor.data_ptr() for name, tensor in adapter.transformer.state_dict().items()}
    Sharding(adapter.transformer).bind(crew[0])
    assert {name: tensor.data_ptr() for name, tensor in adapter.transformer.state_dict().items()} == before


def test_forward_over_a_dropped_group_is_broken_and_the_next_one_alone_is_right(crew):
    adapter = tiny_adapter()
    expected = velocity(adapter)
    sharding = Sharding(adapter.transformer)
    sharding.bind(crew[0])
    crew[0].drop()
    crew[0].drop()
    with pytest.raises(CrewBroken, match=r"rank 0 of group spot-1\.1#3 failed in all-to-all"):
        velocity(adapter)
    sharding.bind(None)
    assert torch.equal(velocity(adapter), expected)


def test_gradients_of_two_ranks_add_up_to_those_of_one(crew):
    """Not bit for bit: each rank sums over its own tokens first."""
    alone, *adapters = (tiny_adapter() for _ in range(3))
    for adapter, group in zip(adapters, crew, strict=True):
        Sharding(adapter.transformer).bind(group)

    def gradients(adapter: PixelAdapter) -> list[Tensor]:
        with torch.enable_grad():
            velocity.__wrapped__(adapter).square().sum().backward()
        return [p.grad if p.grad is not None else torch.zeros_like(p) for p in adapter.transformer.parameters()]

    wanted = gradients(alone)
    with ThreadPoolExecutor(2) as threads:
        made = list(threads.map(gradients, adapters))
    for name, *each in zip(dict(alone.transformer.named_parameters()), wanted, *made, strict=True):
        distance = (each[1] + each[2] - each[0]).norm() / each[0].norm().clamp(min=1e-3)
        assert distance < 1e-4, name
    assert any(not torch.equal(one, other) for one, other in zip(*made, strict=True))


def test_degree_beyond_the_heads_is_refused_with_the_legal_ones(crew):
    one_head = QwenImageTransformer2DModel(
        in_channels=4, out_channels=1, num_layers=1, attention_head_dim=8, num_attention_heads=1,
        joint_attention_dim=8, axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    with pytest.raises(ConfigError, match="the model has 1 attention heads"):
        Sharding(one_head).bind(crew[0])


@torch.no_grad()
def test_fewer_tokens_than_ranks_are_refused(crew):
    transformer: Any = tiny_adapter().transformer
    Sharding(transformer).bind(crew[0])
    with pytest.raises(ConfigError, match="an image of 1 tokens cannot be split over a crew of 2"):
        transformer.img_in(torch.zeros(1, 1, transformer.config.in_channels))


def test_crew_of_one_has_no_group():
    assert form(TOKEN, MEMBERS[:1], 0, "nowhere") is None


def test_rank_that_is_no_member_is_refused():
    with pytest.raises(ConfigError, match="rank 2 is not in a crew of 2"):
        form(TOKEN, MEMBERS, 2, "nowhere")


@pytest.mark.skipif(dist.is_nccl_available(), reason="this build of torch has NCCL")
def test_nccl_without_a_cuda_build_names_what_to_install():
    with pytest.raises(EnvironmentProblem, match="install a CUDA build"):
        form(TOKEN, MEMBERS, 0, "nowhere", device_kind=DeviceKind.NCCL)


def test_error_survives_being_pickled():
    error = pickle.loads(pickle.dumps(CrewBroken("broken", MEMBERS[1])))
    assert (str(error), error.waited_for) == ("broken", MEMBERS[1])


def compile_whole(transformer: Any) -> None:
    transformer.compile(backend="eager")


def modulate_by_index(transformer: Any) -> None:
    transformer.zero_cond_t = True


def fuse(transformer: Any) -> None:
    transformer.transformer_blocks[0].attn.fused_projections = True


@pytest.mark.parametrize(
    ("spoil", "message"),
    [(compile_whole, "compiled as a whole"), (modulate_by_index, "zero_cond_t"), (fuse, "fused projections")],
)
def test_transformer_that_cannot_be_split_is_refused_before_anything_is_installed(spoil: Spoil, message: str):
    transformer = tiny_adapter().transformer
    spoil(transformer)
    with pytest.raises(ConfigError, match=message):
        Sharding(transformer)


def test_unknown_transformer_is_refused():
    with pytest.raises(ConfigError, match="a Linear cannot be split"):
        Sharding(nn.Linear(1, 1))


def test_flux_with_another_processor_is_refused():
    flux = FluxTransformer2DModel(
        in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=8, pooled_projection_dim=8, axes_dims_rope=(2, 2, 4),
    )  # fmt: skip
    flux.single_transformer_blocks[0].attn.processor = object()
    with pytest.raises(ConfigError, match="attention by object"):
        Sharding(flux)
