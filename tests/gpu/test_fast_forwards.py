"""Compiled forwards, attention kernels, CUDA graphs and fp8 on a GPU."""

from itertools import pairwise

import pytest
import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor
from torch.nn import functional as F

from spotlight.compute.fast.attention import AttentionKernel, attend
from spotlight.compute.fast.fast_model import FastModel, accelerate
from spotlight.compute.fast.fp8 import add_fp8
from spotlight.compute.fast.graphs import GraphedForwards
from spotlight.compute.models.qwen_dit import LORA_TARGETS
from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.train.recomputation import blocks_of, recompute_first
from spotlight.compute.weights.resident import Resident, own_copy
from spotlight.core.types import Version
from spotlight.core.work import WeightsId

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
HALF_PRECISION = {"rtol": 3e-2, "atol": 3e-2}
ROWS, TEXT, GRID = 2, 48, (16, 16)
DEVICE = "cuda"


def _masked(parts: list[Tensor], keep_BS: Tensor) -> Tensor:
    q, k, v = (part.float().transpose(1, 2) for part in parts)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep_BS[:, None, None, :]).transpose(1, 2)


@pytest.mark.parametrize("kernel", [AttentionKernel.CUDNN, AttentionKernel.FLASH, AttentionKernel.MASKED])
def test_attention_and_its_gradients_are_those_of_masked_attention(kernel: AttentionKernel) -> None:
    torch.manual_seed(0)
    parts = [torch.randn(ROWS, 300, 4, 64, device=DEVICE).bfloat16().requires_grad_() for _ in range(3)]
    keep_BS = torch.ones(ROWS, 300, dtype=torch.bool, device=DEVICE)
    keep_BS[0, 10:40], keep_BS[1, 30:40] = False, False
    keep, upstream = keep_BS[..., None, None], torch.randn(ROWS, 300, 4, 64, device=DEVICE) * keep_BS[..., None, None]
    zeroed = parts[0], parts[1] * keep, parts[2] * keep
    found = attend(kernel, *zeroed, keep_BS, (~keep_BS).sum(1))
    wanted = _masked(parts, keep_BS)
    torch.testing.assert_close(found.float() * keep, wanted * keep, **HALF_PRECISION)
    gradients = torch.autograd.grad((found.float() * upstream).sum(), parts)
    for one, other in zip(gradients, torch.autograd.grad((wanted * upstream).sum(), parts), strict=True):
        torch.testing.assert_close(one.float(), other.float(), **HALF_PRECISION)


def _model() -> QwenImageTransformer2DModel:
    torch.manual_seed(0)
    model = QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=16,
        out_channels=4,
        num_layers=4,
        attention_head_dim=64,
        num_attention_heads=4,
        joint_attention_dim=64,
        axes_dims_rope=(16, 24, 24),
    )
    model = model.to(DEVICE, torch.bfloat16).eval()
    select_trainable(model, LoraConfig(rank=16, alpha=32), LORA_TARGETS, seed=1)
    return model


def _inputs() -> list[Tensor]:
    drawn = torch.Generator(DEVICE).manual_seed(3)
    x, text = (
        torch.randn(ROWS, tokens, width, generator=drawn, device=DEVICE).bfloat16()
        for tokens, width in ((GRID[0] * GRID[1], 16), (TEXT, 64))
    )
    keep_BT = torch.arange(TEXT, device=DEVICE) < torch.tensor([[20], [40]], device=DEVICE)
    return [x, text, torch.tensor([0.3, 0.7], device=DEVICE).bfloat16(), keep_BT]


def _forward(model: QwenImageTransformer2DModel, is_fast: bool = True):
    def forward(x: Tensor, text: Tensor, timestep: Tensor, keep_BT: Tensor) -> Tensor:
        masked = {"attention_kwargs": {"text_keep": keep_BT}} if is_fast else {"encoder_hidden_states_mask": keep_BT}
        output: Tensor = model(
            hidden_states=x,
            encoder_hidden_states=text,
            timestep=timestep,
            img_shapes=[[(1, *GRID)]] * ROWS,
            return_dict=False,
            **masked,
        )[0]
        return output.float()

    return forward


def test_compiled_velocity_is_near_the_eager_one() -> None:
    with torch.no_grad():
        wanted = _forward(_model(), is_fast=False)(*_inputs())
        for kernel in (AttentionKernel.CUDNN, AttentionKernel.FLASH):
            model = _model()
            accelerate(model, kernel)
            found = _forward(model)(*_inputs())
            assert float((found - wanted).norm() / wanted.norm()) < 0.03


@pytest.mark.parametrize("recomputed", [0, 2, 4])
@pytest.mark.parametrize("kernel", [AttentionKernel.CUDNN, AttentionKernel.FLASH])
def test_compiled_gradients_are_near_the_eager_ones_whichever_blocks_are_recomputed(
    kernel: AttentionKernel, recomputed: int
) -> None:
    found: list[Tensor] = []
    wanted: list[Tensor] = []
    for gradients, is_fast in ((found, True), (wanted, False)):
        model = _model().train()
        recompute_first(model, recomputed)
        if is_fast:
            accelerate(model, kernel)
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator(DEVICE).manual_seed(len(name)))
        _forward(model, is_fast)(*_inputs()).square().mean().backward()
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients += [(torch.zeros_like(p) if p.grad is None else p.grad).float().flatten() for p in trained]
    one, other = torch.cat(found), torch.cat(wanted)
    assert (one - other).norm() < 0.05 * other.norm()


def test_replay_has_the_bits_of_the_captured_forward_for_any_input() -> None:
    model = _model()
    accelerate(model, AttentionKernel.CUDNN)
    forward, graphs = _forward(model), GraphedForwards()
    with torch.no_grad():
        graphs.run("one", forward, _inputs())
        assert len(graphs) == 1
        for scale in (1.0, 0.5, 2.0):
            x, *others = _inputs()
            assert torch.equal(graphs.run("one", forward, [x * scale, *others]), forward(x * scale, *others))


def test_graph_computes_with_the_set_in_use_and_with_each_later_one() -> None:
    model = _model()
    fast = accelerate(model, AttentionKernel.CUDNN)
    resident = Resident(model, "base", fast=fast)
    trained = {name: p.data for name, p in model.named_parameters() if p.requires_grad}
    seen = []
    for version in (1, 2, 3, 4):
        weights, drawn = WeightsId(Version(version)), own_copy(trained)
        for number, tensor in enumerate(drawn.values()):
            tensor.normal_(std=0.05, generator=torch.Generator(DEVICE).manual_seed(100 * version + number))
        resident.adopt(weights, drawn)
        with resident.use(weights):
            found = fast.run("forward", _forward(model), _inputs())
            assert torch.equal(found, _forward(model)(*_inputs())), version
        seen.append(found)
        if version > 1:
            resident.drop(WeightsId(Version(version - 1)))
    assert fast.graphs is not None
    assert len(fast.graphs) == 1
    assert not any(torch.equal(one, other) for one, other in pairwise(seen))


def test_fp8_velocity_is_near_the_exact_one_and_leaves_that_one_alone() -> None:
    model = _model()
    fast: FastModel = accelerate(model, AttentionKernel.CUDNN, fp8_previews=True)
    forward, inputs = _forward(model), _inputs()
    with torch.no_grad():
        before = forward(*inputs)
        with fast.rolling_out("own", is_preview=True):
            preview = fast.run("forward", forward, inputs)
        after = forward(*inputs)
    assert torch.equal(before, after)
    assert 0 < float((preview - before).norm() / before.norm()) < 0.1


def test_fp8_product_on_the_tensor_cores_is_the_product_of_the_rounded_numbers() -> None:
    model = _model()
    fast = FastModel(AttentionKernel.MASKED)
    assert add_fp8(blocks_of(model), fast.precision) > 0
    layer = model.transformer_blocks[0].img_mlp.net[2].base_layer
    x = torch.randn(64, layer.in_features, device=DEVICE).bfloat16()
    fast.precision.previews = True
    found = layer(x)
    scale = x.abs().amax(1, keepdim=True).float() / 448
    rounded = (x.float() / scale).to(torch.float8_e4m3fn).float() * scale
    wanted = rounded @ (layer.weight8_OI.float() * layer.scale8_O[:, None]).t() + layer.bias.float()
    torch.testing.assert_close(found.float(), wanted, **HALF_PRECISION)
