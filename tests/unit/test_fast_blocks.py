"""A model made fast computes what it computed before, but for rounding: velocity, gradient, names."""

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from spotlight.compute.fast.attention import AttentionKernel
from spotlight.compute.fast.fast_model import accelerate, one_text_width, row_bucket
from spotlight.compute.fast.kernel_choice import fastest_kernel, usable_kernels
from spotlight.compute.models.qwen_dit import LORA_TARGETS
from spotlight.compute.train.batch_search import FixedRows, PowersOfTwo
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.core.errors import EnvironmentProblem

ROWS, TEXT, GRID = 3, 12, (4, 6)
LENGTHS = (12, 5, 1)


def _qwen(dtype: torch.dtype = torch.float32) -> QwenImageTransformer2DModel:
    torch.manual_seed(0)
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=24,
        axes_dims_rope=(4, 6, 6),
    ).to(dtype)


def _velocity(model: nn.Module, is_fast: bool, dtype: torch.dtype = torch.float32) -> Tensor:
    drawn = torch.Generator().manual_seed(1)
    keep_BT = torch.arange(TEXT) < torch.tensor(LENGTHS)[:, None]
    masked = {"attention_kwargs": {"text_keep": keep_BT}} if is_fast else {"encoder_hidden_states_mask": keep_BT}
    output: Tensor = model(
        hidden_states=torch.randn(ROWS, GRID[0] * GRID[1], 16, generator=drawn).to(dtype),
        encoder_hidden_states=torch.randn(ROWS, TEXT, 24, generator=drawn).to(dtype),
        timestep=torch.tensor([0.1, 0.5, 0.9], dtype=dtype),
        img_shapes=[[(1, *GRID)]] * ROWS,
        return_dict=False,
        **masked,
    )[0]
    return output


@pytest.mark.parametrize(
    ("kernel", "has_lora"),
    [
        pytest.param(AttentionKernel.MASKED, True, marks=pytest.mark.slow),
        (AttentionKernel.CPU, False),
        pytest.param(AttentionKernel.MASKED, False, marks=pytest.mark.slow),
        pytest.param(AttentionKernel.CPU, True, marks=pytest.mark.slow),
    ],
)
def test_velocity_and_gradient_are_those_of_the_eager_model(kernel: AttentionKernel, has_lora: bool) -> None:
    eager, fast = _qwen(), _qwen()
    for model in (eager, fast):
        select_trainable(model, LoraConfig(rank=4, alpha=8) if has_lora else None, LORA_TARGETS, seed=3)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(5))
    accelerate(fast, kernel, backend="aot_eager")
    wanted, found = _velocity(eager, False), _velocity(fast, True)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in eager.named_parameters()]
    for velocity in (wanted, found):
        velocity.square().sum().backward()
    for (name, one), (_, other) in zip(fast.named_parameters(), eager.named_parameters(), strict=True):
        if other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4, msg=name)


def test_one_graph_serves_all_blocks_in_training() -> None:
    model = _qwen()
    select_trainable(model, LoraConfig(rank=4, alpha=8), LORA_TARGETS, seed=3)
    accelerate(model, AttentionKernel.MASKED, backend="aot_eager")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(2):
        _velocity(model, True).square().sum().backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize(
    ("longest_prompt", "image_tokens", "least"), [(96, 1024, 96), (48, 1024, 48), (768, 1024, 96), (768, 6400, 768)]
)
def test_text_of_a_run_has_one_width_unless_padding_costs_too_much(
    longest_prompt: int, image_tokens: int, least: int
) -> None:
    assert one_text_width(longest_prompt, (48, 96, 192, 384, 768, 1032), image_tokens) == least
    assert one_text_width(longest_prompt, (48, 96, 192, 384, 768, 1032), 16) == 48


def test_training_batches_of_a_compiled_model_are_powers_of_two_and_cover_all_rows() -> None:
    sizes, left, taken = PowersOfTwo(FixedRows(6)), 23, []
    while left:
        taken.append(sizes.size(left))
        left -= taken[-1]
    assert sum(taken) == 23
    assert set(taken) <= {1, 2, 4}


def test_kernel_is_the_only_usable_one_on_a_cpu_and_a_family_can_exclude_one() -> None:
    kernels = usable_kernels(torch.device("cpu"), torch.float32)
    assert kernels == [AttentionKernel.MASKED]
    assert fastest_kernel(kernels, 1, 8, 0, _qwen()) is AttentionKernel.MASKED
    on_gpu = usable_kernels(torch.device("cuda"), torch.bfloat16, excluded=("cudnn",))
    assert on_gpu == [AttentionKernel.MASKED, AttentionKernel.FLASH]
    assert usable_kernels(torch.device("cuda"), torch.float32) == [AttentionKernel.MASKED]


def test_kernels_that_all_fail_are_an_error_that_says_what_to_set() -> None:
    with pytest.raises(EnvironmentProblem, match=r"set model\.compile to false"):
        fastest_kernel([AttentionKernel.FLASH, AttentionKernel.CUDNN], 1, 8, 0, _qwen())


def test_row_buckets_waste_little_and_are_few() -> None:
    buckets = [row_bucket(rows, most=128) for rows in range(1, 129)]
    assert all(bucket >= rows for rows, bucket in enumerate(buckets, 1))
    assert all(bucket < 2 * rows for rows, bucket in enumerate(buckets, 1))
    assert len(set(buckets)) <= 8
    assert row_bucket(5, most=5) == 5
