"""Qwen-Image's adapter against diffusers' own pipeline, on a tiny random model that was saved and loaded."""

from pathlib import Path

import pytest
import torch
from diffusers import (
    AutoencoderKLQwenImage,
    FlowMatchEulerDiscreteScheduler,
    QwenImagePipeline,
    QwenImageTransformer2DModel,
)
from tiny_qwen_image import conditioning, empty_pipeline, save_tiny_model

from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.family_registry import QWEN_IMAGE
from spotlight.compute.models.packing import patchify
from spotlight.compute.models.qwen_image import QwenImageAdapter
from spotlight.compute.rollout import denoise
from spotlight.core.errors import ConfigError, PromptError, SizeError
from spotlight.core.types import PromptId, Sample, Sampling, Size, Version

SIZE = Size(64, 96)
# At this size a schedule of 28 steps has a sigma that the pipeline's 1000 sigma / 1000 moves by an ulp.
STEPS = 28
SEEDS = (11, 7)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("qwen-image"))


@pytest.fixture(scope="module")
def adapter(folder) -> QwenImageAdapter:
    return QwenImageAdapter.from_pretrained(str(folder), "cpu", torch.float32)


@pytest.fixture(scope="module")
def pipeline(folder) -> QwenImagePipeline:
    """The reference, loaded apart from the adapter: it shares files with it, not modules."""
    return empty_pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler.from_pretrained(folder, subfolder="scheduler"),
        vae=AutoencoderKLQwenImage.from_pretrained(folder, subfolder="vae"),
        transformer=QwenImageTransformer2DModel.from_pretrained(folder, subfolder="transformer"),
    )


def initial_noise(size: Size) -> torch.Tensor:
    latents = [
        torch.randn(1, 16, size.height // 8, size.width // 8, generator=torch.Generator().manual_seed(seed))
        for seed in SEEDS
    ]
    return patchify(torch.cat(latents), 2)


def generators() -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed) for seed in SEEDS]


def rolled_out(monkeypatch, pipeline, adapter, cond, uncond, guidance) -> torch.Tensor:
    """The real rollout loop, from the noise that the pipeline draws with its own generators."""
    packed = pipeline.prepare_latents(
        len(SEEDS), 16, SIZE.height, SIZE.width, torch.float32, torch.device("cpu"), generators()
    )
    monkeypatch.setattr(denoise, "initial_noise", lambda run_seed, samples, shape: packed)
    sampling = Sampling(steps=STEPS, size=SIZE, guidance=guidance)
    samples = [Sample(prompt=PromptId("p"), seed=seed, sampling=sampling, version=Version(0)) for seed in SEEDS]
    return denoise.roll_out(adapter, samples, cond, uncond, run_seed=0).x0_BSC


def run_pipeline(pipeline, cond, uncond, guidance, output_type="latent") -> torch.Tensor:
    negative = {}
    if uncond is not None:
        negative = {"negative_prompt_embeds": uncond.embeds, "negative_prompt_embeds_mask": uncond.mask}
    return pipeline(
        prompt_embeds=cond.embeds,
        prompt_embeds_mask=cond.mask,
        **negative,
        true_cfg_scale=guidance,
        height=SIZE.height,
        width=SIZE.width,
        num_inference_steps=STEPS,
        generator=generators()[: len(cond.mask)],
        output_type=output_type,
    ).images


@pytest.fixture(scope="module")
def batches(adapter) -> tuple[ConditionBatch, ConditionBatch]:
    """Prompts of 9 and 23 tokens, negatives of 3 and 5, padded to 48: no mask is full, so both sides keep it."""
    prompts, negatives = ((9, 1), (23, 2)), ((3, 3), (5, 4))
    cond, uncond = (adapter.collate([conditioning(*pair) for pair in pairs]) for pairs in (prompts, negatives))
    return cond, uncond


def at(sigma: float, rows: int = 2) -> torch.Tensor:
    return torch.full((rows,), sigma)


@pytest.mark.parametrize("guidance", [4.0, 1.0])
def test_rollout_guided_or_not_is_the_pipeline_bit_for_bit(monkeypatch, adapter, pipeline, batches, guidance):
    cond, uncond = batches
    assert not cond.mask.all(dim=1).any()
    negative = uncond if guidance > 1 else None
    ours = rolled_out(monkeypatch, pipeline, adapter, cond, negative, guidance)
    assert torch.equal(ours, run_pipeline(pipeline, cond, negative, guidance))
    assert (ours[0] - ours[1]).abs().max() > 0.1
    sigmas = adapter.schedule(SIZE, STEPS)
    assert not torch.equal(sigmas * 1000 / 1000, sigmas)


def test_rollout_under_a_full_mask_agrees_with_the_pipeline_that_drops_it(monkeypatch, adapter, pipeline):
    cond = adapter.collate([conditioning(48, 1), conditioning(48, 2)])
    assert cond.mask.all()
    ours = rolled_out(monkeypatch, pipeline, adapter, cond, None, 1.0)
    theirs = run_pipeline(pipeline, cond, None, 1.0)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_velocity_is_guided_exactly_where_a_negative_is_given(adapter, batches):
    cond, uncond = batches
    x_BSC = initial_noise(SIZE)
    plain = adapter.velocity(x_BSC, at(0.5), cond, None, 4.0, SIZE)
    assert torch.equal(plain, adapter.velocity(x_BSC, at(0.5), cond, None, 1.0, SIZE))
    torch.testing.assert_close(adapter.velocity(x_BSC, at(0.5), cond, uncond, 1.0, SIZE), plain)
    strong = adapter.velocity(x_BSC, at(0.5), cond, uncond, 4.0, SIZE)
    assert (strong - plain).abs().max() > 1e-3
    torch.testing.assert_close(strong.norm(dim=-1), plain.norm(dim=-1))


def test_decode_is_the_pipelines_bit_for_bit_and_independent_of_neighbours(adapter, pipeline, batches):
    cond, _ = batches
    one = cond.rows(slice(0, 1))
    image = run_pipeline(pipeline, one, None, 1.0, output_type="pt")
    latents = run_pipeline(pipeline, one, None, 1.0)
    decoded = adapter.decode(latents, SIZE)
    assert decoded.shape == (1, 3, SIZE.height, SIZE.width)
    assert decoded.dtype == torch.float32
    assert decoded.std() > 1e-3
    assert torch.equal(decoded, image)
    assert torch.equal(adapter.decode(torch.cat([latents, 2 * latents]), SIZE)[:1], decoded)


def test_velocity_under_wider_padding_does_not_change(adapter):
    conds = [conditioning(9, 1), conditioning(23, 2)]
    x_BSC = initial_noise(SIZE)
    narrow, wide = adapter.collate(conds), adapter.collate(conds, width=96)
    assert (narrow.mask.shape[1], wide.mask.shape[1]) == (48, 96)
    v_narrow = adapter.velocity(x_BSC, at(0.7), narrow, None, 1.0, SIZE)
    torch.testing.assert_close(v_narrow, adapter.velocity(x_BSC, at(0.7), wide, None, 1.0, SIZE), atol=1e-5, rtol=0)
    unmasked = ConditionBatch(wide.embeds, torch.ones_like(wide.mask))
    assert (adapter.velocity(x_BSC, at(0.7), unmasked, None, 1.0, SIZE) - v_narrow).abs().max() > 1e-4


def test_velocity_of_a_row_depends_on_its_own_sigma_and_not_on_its_neighbours(adapter, batches):
    cond, uncond = batches
    x_BSC, sigma_B = initial_noise(SIZE), torch.tensor([0.9, 0.2])
    together = adapter.velocity(x_BSC, sigma_B, cond, uncond, 4.0, SIZE)
    for row in range(2):
        pick = slice(row, row + 1)
        alone = adapter.velocity(x_BSC[pick], sigma_B[pick], cond.rows(pick), uncond.rows(pick), 4.0, SIZE)
        torch.testing.assert_close(together[pick], alone, atol=1e-5, rtol=0)
    swapped = adapter.velocity(x_BSC, sigma_B.flip(0), cond, uncond, 4.0, SIZE)
    assert (swapped - together).abs().amax(dim=(1, 2)).min() > 1e-4


def test_guidance_over_two_widths_runs_both_branches_at_the_wider(adapter):
    long, short = adapter.collate([conditioning(60, 1)] * 2), adapter.collate([conditioning(3, 3)] * 2)
    seen = []
    hook = adapter.transformer.register_forward_pre_hook(
        lambda _, __, inputs: seen.append((inputs["encoder_hidden_states"], inputs["encoder_hidden_states_mask"])),
        with_kwargs=True,
    )
    for cond, uncond in ((long, short), (short, long)):
        adapter.velocity(initial_noise(SIZE), at(0.5), cond, uncond, 4.0, SIZE)
    hook.remove()
    assert [embeds.shape[1] for embeds, _ in seen] == [96] * 4
    assert [mask.sum(dim=1).tolist() for _, mask in seen] == [[60, 60], [3, 3], [3, 3], [60, 60]]


def test_gradient_under_guidance_flows_through_both_branches(adapter, batches):
    cond, uncond = (ConditionBatch(b.embeds.clone().requires_grad_(), b.mask) for b in batches)
    x_BSC = initial_noise(SIZE).requires_grad_()
    adapter.velocity(x_BSC, at(0.5), cond, uncond, 4.0, SIZE).square().mean().backward()
    for leaf in (cond.embeds, uncond.embeds, x_BSC):
        assert leaf.grad is not None
        assert leaf.grad.abs().max() > 0
    adapter.transformer.zero_grad()


def test_bf16_computes_in_bf16_from_a_sigma_rounded_once_and_returns_fp32(folder):
    adapter = QwenImageAdapter.from_pretrained(str(folder), "cpu", torch.bfloat16)
    seen = []
    adapter.transformer.register_forward_pre_hook(lambda _, __, inputs: seen.append(inputs), with_kwargs=True)
    cond = adapter.collate([conditioning(9, 1)])
    x_BSC = initial_noise(SIZE)[:1]
    sigmas = adapter.schedule(SIZE, STEPS)[:-1]
    velocities = [adapter.velocity(x_BSC, sigma[None], cond, None, 1.0, SIZE) for sigma in sigmas]
    assert {v.dtype for v in velocities} == {torch.float32}
    assert {inputs["hidden_states"].dtype for inputs in seen} == {torch.bfloat16}
    timesteps = torch.cat([inputs["timestep"] for inputs in seen])
    assert torch.equal(timesteps, sigmas.bfloat16())
    assert not torch.equal(timesteps, (sigmas * 1000).bfloat16() / 1000)


@pytest.mark.parametrize(
    ("side", "golden"),
    [
        (512, [1, 0.928970, 0.851485, 0.766624, 0.673281, 0.570117, 0.455497, 0.327400, 0.183300, 0.02, 0]),
        (1024, [1, 0.936978, 0.866951, 0.788682, 0.700624, 0.600818, 0.486747, 0.355115, 0.201530, 0.02, 0]),
    ],
)
def test_schedule_of_ten_steps_matches_golden_sigmas_and_is_pure(adapter, side, golden):
    sigmas = adapter.schedule(Size(side, side), 10)
    assert sigmas.dtype == torch.float32
    assert sigmas.device.type == "cpu"
    assert sigmas[0] == 1.0
    assert sigmas[-1] == 0.0
    torch.testing.assert_close(sigmas, torch.tensor(golden, dtype=torch.float32), atol=1e-6, rtol=0)
    adapter.schedule(Size(256, 256), 4)
    assert torch.equal(sigmas, adapter.schedule(Size(side, side), 10))


def test_schedule_of_one_step_which_would_be_nan_is_refused(adapter):
    with pytest.raises(ConfigError, match="1 steps"):
        adapter.schedule(SIZE, 1)


def test_latent_shape_of_a_size_that_cannot_be_made_names_the_nearest(adapter):
    assert adapter.latent_shape(Size(512, 512)) == (1024, 64)
    assert adapter.latent_shape(SIZE) == (24, 64)
    for wrong, nearest in ((Size(500, 516), "496x512"), (Size(0, 64), "16x64"), (Size(7, 64), "16x64")):
        for call in (adapter.latent_shape, lambda size: adapter.schedule(size, 4)):
            with pytest.raises(SizeError, match=f"{wrong} .* 16; .*{nearest}"):
                call(wrong)


def test_buckets_split_evenly_and_hold_the_longest_prompt(adapter):
    assert all(width % 12 == 0 for width in QWEN_IMAGE.text_buckets)
    assert [adapter.bucket_width(n) for n in (1, 48, 49, 1024)] == [48, 48, 96, 1032]
    with pytest.raises(PromptError, match="1033"):
        adapter.bucket_width(1033)


def test_collate_pads_with_zeros_and_a_bool_mask(adapter):
    short, long = conditioning(3, 1), conditioning(50, 2)
    batch = adapter.collate([short, long])
    assert batch.mask.dtype == torch.bool
    assert batch.mask.sum(dim=1).tolist() == [3, 50]
    assert torch.equal(batch.embeds[0, :3], short.embeds)
    assert torch.equal(batch.embeds[1, :50], long.embeds)
    assert not batch.embeds[~batch.mask].any()
    with pytest.raises(PromptError, match=r"50 .* 48"):
        adapter.collate([short, long], width=48)


def test_lora_targets_match_every_linear_of_both_streams(adapter):
    linear = [name for name, m in adapter.transformer.named_modules() if isinstance(m, torch.nn.Linear)]
    matches = {target: sum(name.endswith("." + target) for name in linear) for target in adapter.lora_targets}
    assert set(matches.values()) == {2}
    assert len(matches) == 12
    assert adapter.heads == 4
