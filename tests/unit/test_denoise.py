"""The denoising loop: a sample's latents do not depend on its batch, and its window replays exactly in training."""

import msgspec
import pytest
import torch
from tiny_models import (
    NOISE_LEVELS,
    PROMPTS,
    RUN_SEED,
    SIZE,
    conditions,
    grouped_samples,
    rolled_out,
    sample_of,
    tiny_adapter,
    tiny_sampling,
    unconditions,
)

from spotlight.compute.models.qwen_dit import true_cfg
from spotlight.compute.rollout import samplers
from spotlight.compute.rollout.config import RolloutConfig
from spotlight.compute.rollout.denoise import roll_out
from spotlight.compute.rollout.noise import initial_noise, step_noise
from spotlight.core.errors import ConfigError, Diverged
from spotlight.core.types import Sample, SamplerKind, Version, Window

FLOW = SamplerKind.FLOW_SDE
STOCHASTIC = sorted(NOISE_LEVELS)
ADAPTER = tiny_adapter()
SHAPE = ADAPTER.latent_shape(SIZE)


def mixed_samples(kind: SamplerKind = FLOW, guidance: float = 1.0) -> list[Sample]:
    """Eight samples of four prompts; windows of two steps start at 0, 1 or 2."""
    return [
        sample_of(PROMPTS[i % 4], i // 4, tiny_sampling(kind, Window(i % 3, 2), guidance=guidance)) for i in range(8)
    ]


@torch.no_grad()
def plain_states(sample: Sample) -> list[torch.Tensor]:
    """x before every step and after the last, of one sample alone, by the formulas and nothing else."""
    sampling, alone = sample.sampling, [sample]
    sigmas = ADAPTER.schedule(SIZE, sampling.steps)
    x = initial_noise(RUN_SEED, alone, SHAPE)
    cond, uncond = conditions(ADAPTER, alone), unconditions(ADAPTER, alone)
    states = [x]
    for step in range(sampling.steps):
        now, after = sigmas[step : step + 1], sigmas[step + 1 : step + 2]
        v = ADAPTER.velocity(x, now, cond, uncond, sampling.guidance, SIZE)
        if step in sampling.window:
            noise = step_noise(RUN_SEED, alone, step, SHAPE)
            level, second = sampling.noise_level, float(sigmas[1])
            x = samplers.transition(sampling.sampler, x, v, now, after, second, level).sample(noise)
        else:
            x = x + (after - now) * v
        states.append(x)
    return states


@pytest.mark.parametrize("guidance", [1.0, 3.0])
def test_latents_in_a_shuffled_batch_are_bit_equal(guidance):
    samples, order = mixed_samples(guidance=guidance), [5, 2, 7, 0, 3, 6, 1, 4]
    made, again = rolled_out(ADAPTER, samples), rolled_out(ADAPTER, [samples[i] for i in order])
    for name in ("x0_BSC", "path_BKSC", "mean_BKSC", "log_prob_BK"):
        assert torch.equal(getattr(again, name), getattr(made, name)[order]), name
    assert again.samples == tuple(samples[i] for i in order)


def test_latents_do_not_depend_on_neighbours_seeds_and_windows():
    """Same batch size: bit-equal, though every neighbour is another sample."""
    samples = mixed_samples()
    others = [sample_of(PROMPTS[0], 50 + i, tiny_sampling(FLOW, Window(2, 2))) for i in range(7)]
    made = rolled_out(ADAPTER, samples)
    for row in (0, 4, 7):
        again = rolled_out(ADAPTER, [*others[:row], samples[row], *others[row:]])
        assert torch.equal(again.x0_BSC[row], made.x0_BSC[row])
        assert torch.equal(again.path_BKSC[row], made.path_BKSC[row])


@pytest.mark.parametrize("size", [1, 3])
def test_latents_in_batches_of_another_size_agree_closely(size):
    samples = mixed_samples()
    made = rolled_out(ADAPTER, samples)
    parts = [rolled_out(ADAPTER, samples[start : start + size]) for start in range(0, 8, size)]
    torch.testing.assert_close(torch.cat([part.x0_BSC for part in parts]), made.x0_BSC, rtol=0, atol=1e-5)
    torch.testing.assert_close(torch.cat([part.path_BKSC for part in parts]), made.path_BKSC, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", STOCHASTIC)
def test_window_records_the_states_of_a_plain_loop(kind):
    samples = mixed_samples(kind)
    made = rolled_out(ADAPTER, samples)
    assert made.path_BKSC.shape == (8, 3, *SHAPE)
    for row, sample in enumerate(samples):
        states = torch.cat(plain_states(sample))
        start = sample.sampling.window.start
        torch.testing.assert_close(made.path_BKSC[row], states[start : start + 3], rtol=0, atol=1e-5)
        torch.testing.assert_close(made.x0_BSC[row], states[-1], rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", STOCHASTIC)
@torch.no_grad()
def test_window_replayed_in_the_same_layout_is_exact(kind):
    """path[k+1] = mean + std * noise, and the recorded log-probability is that of path[k+1], to the last bit."""
    samples = [sample_of(prompt, 3, tiny_sampling(kind, Window(1, 3))) for prompt in PROMPTS]
    made, cond = rolled_out(ADAPTER, samples), conditions(ADAPTER, samples)
    sigmas = ADAPTER.schedule(SIZE, samples[0].sampling.steps)
    for place in range(3):
        step, x = 1 + place, made.path_BKSC[:, place]
        now, after = sigmas[step].expand(4), sigmas[step + 1].expand(4)
        v = ADAPTER.velocity(x, now, cond, None, 1.0, SIZE)
        given = samplers.transition(kind, x, v, now, after, float(sigmas[1]), NOISE_LEVELS[kind])
        assert torch.equal(made.mean_BKSC[:, place], given.mean)
        assert torch.equal(made.path_BKSC[:, place + 1], given.sample(step_noise(RUN_SEED, samples, step, SHAPE)))
        log_prob_B = samplers.log_prob(kind, made.path_BKSC[:, place + 1], given)
        assert torch.equal(made.log_prob_BK[:, place], log_prob_B)
        assert (log_prob_B != 0).all()


def test_window_of_a_neighbour_is_not_entered():
    """A step that is stochastic for one row is an ODE step for another: the ODE prefix is that of an ODE rollout."""
    early, late = (tiny_sampling(FLOW, Window(start, 1)) for start in (0, 3))
    rows = [sample_of(PROMPTS[1], 0, early), sample_of(PROMPTS[1], 0, late)]
    made = rolled_out(ADAPTER, rows)
    ode = plain_states(sample_of(PROMPTS[1], 0, tiny_sampling()))
    torch.testing.assert_close(made.path_BKSC[1, 0], ode[3][0], rtol=0, atol=1e-5)
    assert (made.path_BKSC[0, 1] - ode[1][0]).abs().max() > 0.1


def test_ode_rollout_records_nothing():
    made = rolled_out(ADAPTER, grouped_samples(tiny_sampling()))
    assert made.path_BKSC.shape == (8, 0, *SHAPE)
    assert made.mean_BKSC.shape == (8, 0, *SHAPE)
    assert made.log_prob_BK.shape == (8, 0)
    assert made.x0_BSC.dtype == torch.float32
    assert not made.x0_BSC.requires_grad


def test_ode_rollout_with_a_window_records_nothing():
    """A window means nothing to the ODE; zeros in its place would be trained on."""
    made = rolled_out(ADAPTER, [sample_of(PROMPTS[0], 0, tiny_sampling(window=Window(0, 2)))])
    assert made.path_BKSC.shape[1] == made.mean_BKSC.shape[1] == made.log_prob_BK.shape[1] == 0
    assert torch.equal(made.x0_BSC, rolled_out(ADAPTER, [sample_of(PROMPTS[0], 0, tiny_sampling())]).x0_BSC)


def test_shared_initial_noise_gives_ode_samples_of_a_group_one_picture():
    samples = [sample_of(PROMPTS[0], seed, tiny_sampling()) for seed in range(4)]
    together = [msgspec.structs.replace(sample, shared_start=9) for sample in samples]
    shared, own = rolled_out(ADAPTER, together).x0_BSC, rolled_out(ADAPTER, samples).x0_BSC
    assert torch.equal(shared, shared[:1].expand_as(shared))
    assert (own[0] - own[1]).abs().max() > 0.1


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(tiny_sampling(FLOW, Window(0, 2), steps=6), id="steps"),
        pytest.param(tiny_sampling(SamplerKind.CPS, Window(0, 2)), id="sampler"),
        pytest.param(tiny_sampling(FLOW, Window(0, 1)), id="window-size"),
        pytest.param(tiny_sampling(FLOW, Window(0, 2), guidance=2.0), id="guidance"),
    ],
)
def test_batch_with_mixed_samplings_is_refused(other):
    samples = [sample_of(PROMPTS[0], 0, tiny_sampling(FLOW, Window(0, 2))), sample_of(PROMPTS[0], 1, other)]
    with pytest.raises(ConfigError, match="a batch has one sampling"):
        rolled_out(ADAPTER, samples)


@pytest.mark.parametrize("window", [Window(3, 2), Window(4, 1), Window(-1, 2)])
def test_window_outside_the_trainable_steps_is_refused(window):
    samples = [sample_of(PROMPTS[0], i, tiny_sampling(FLOW, w)) for i, w in enumerate((Window(0, window.size), window))]
    with pytest.raises(ConfigError, match="window"):
        rolled_out(ADAPTER, samples)


@pytest.mark.parametrize(("guidance", "given"), [(3.0, False), (1.0, True)], ids=["missing", "unwanted"])
def test_rollout_whose_guidance_and_unconditional_batch_disagree_is_refused(guidance, given):
    """Adapters guide whenever there is an unconditional batch, so the sample's identity would be wrong."""
    samples = mixed_samples(guidance=guidance)
    uncond = unconditions(ADAPTER, mixed_samples(guidance=3.0)) if given else None
    with pytest.raises(ConfigError, match=f"guidance {guidance} have (no|an) unconditional batch.*pass it"):
        roll_out(ADAPTER, samples, conditions(ADAPTER, samples), uncond, RUN_SEED)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf")])
def test_rollout_with_a_picture_that_is_not_finite_is_refused_by_name(wrong, monkeypatch):
    samples = [msgspec.structs.replace(sample, version=Version(12)) for sample in mixed_samples()]
    real = ADAPTER.velocity

    def velocity(x_BSC, *rest):
        return real(x_BSC, *rest).index_fill(0, torch.tensor([3, 5]), wrong)

    monkeypatch.setattr(ADAPTER, "velocity", velocity)
    named = rf"2 of 8 samples .* prompt {samples[3].prompt}, seed {samples[3].seed} at version 12"
    with pytest.raises(Diverged, match=named) as refusal:
        rolled_out(ADAPTER, samples)
    assert refusal.value.exit_code == 4


def test_window_up_to_the_step_before_the_last_is_taken():
    made = rolled_out(ADAPTER, [sample_of(PROMPTS[0], 0, tiny_sampling(FLOW, Window(0, 4)))])
    assert torch.isfinite(made.log_prob_BK).all()
    assert made.log_prob_BK.shape == (1, 4)


@torch.no_grad()
def test_guided_velocity_follows_true_cfg_and_changes_the_picture():
    samples = mixed_samples(guidance=3.0)
    cond, uncond = conditions(ADAPTER, samples), unconditions(ADAPTER, samples)
    x, sigma_B = initial_noise(RUN_SEED, samples, SHAPE), torch.full((8,), 0.6)
    guided = ADAPTER.velocity(x, sigma_B, cond, uncond, 3.0, SIZE)
    v_cond, v_uncond = (ADAPTER.velocity(x, sigma_B, c, None, 3.0, SIZE) for c in (cond, uncond))
    assert torch.equal(guided, true_cfg(v_cond, v_uncond, 3.0))
    torch.testing.assert_close(guided.norm(dim=-1), v_cond.norm(dim=-1))
    assert (guided - v_cond).abs().max() > 1e-4
    assert (rolled_out(ADAPTER, samples).x0_BSC - rolled_out(ADAPTER, mixed_samples()).x0_BSC).abs().max() > 1e-3
    made = rolled_out(ADAPTER, samples[:1])
    torch.testing.assert_close(made.x0_BSC, plain_states(samples[0])[-1], rtol=0, atol=1e-5)


@torch.no_grad()
def test_padding_content_never_reaches_the_velocity():
    samples = mixed_samples()
    cond = conditions(ADAPTER, samples)
    poisoned = cond.rows(slice(None))
    poisoned.embeds[~cond.mask] = 1e4
    x, sigma_B = initial_noise(RUN_SEED, samples, SHAPE), torch.linspace(0.1, 1.0, 8)
    clean = ADAPTER.velocity(x, sigma_B, conditions(ADAPTER, samples), None, 1.0, SIZE)
    assert not cond.mask.all()
    assert torch.equal(ADAPTER.velocity(x, sigma_B, poisoned, None, 1.0, SIZE), clean)


# --- windows and noise of the `rollout` section ---


def windowed_config(**changes) -> RolloutConfig:
    settings = {"sampler": FLOW, "noise_level": 0.7, "window_size": 2, "window_range": (1, 6), "steps": 8}
    return RolloutConfig(**{**settings, **changes})


def test_window_of_a_group_is_a_pure_function_and_visits_the_whole_range():
    config = windowed_config()
    windows = [config.window_of_group(0, iteration, group) for iteration in range(10) for group in range(10)]
    assert {window.start for window in windows} == {1, 2, 3, 4}
    assert {window.size for window in windows} == {2}
    assert windows[37] == windowed_config().window_of_group(0, 3, 7)
    assert [config.window_of_group(1, 0, group) for group in range(20)] != windows[:20]
    assert RolloutConfig().window_of_group(0, 0, 0).size == 0


def test_window_of_every_legal_config_can_be_rolled_out():
    config = windowed_config(steps=5, window_range=(0, 4), window_size=3)
    for group in range(4):
        sampling = config.sampling(SIZE, config.window_of_group(0, 0, group))
        assert torch.isfinite(rolled_out(ADAPTER, [sample_of(PROMPTS[0], 0, sampling)]).log_prob_BK).all()


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"noise_level": 0.0}, id="no-noise"),
        pytest.param({"sampler": SamplerKind.CPS, "noise_level": 1.2}, id="cps-above-1"),
        pytest.param({"window_size": 0}, id="sde-without-window"),
        pytest.param({"sampler": SamplerKind.ODE}, id="ode-with-window"),
        pytest.param({"sampler": SamplerKind.ODE2, "window_size": 0}, id="previews-alone"),
        pytest.param({"window_range": (1, 8)}, id="last-step"),
        pytest.param({"window_range": (5, 6)}, id="too-narrow"),
        pytest.param({"window_range": (-1, 4)}, id="before-the-first"),
        pytest.param({"group_size": 1}, id="no-contrast"),
    ],
)
def test_rollout_section_that_cannot_be_rolled_out_is_refused(changes):
    with pytest.raises(ConfigError, match=r"rollout\."):
        windowed_config(**changes)


@pytest.mark.parametrize(
    ("kind", "level", "bound"),
    [(FLOW, 0.0, "above 0:"), (SamplerKind.CPS, 0.0, "above 0:"), (SamplerKind.CPS, 1.2, "above 0 and at most to 1:")],
)
def test_refusal_of_a_noise_level_names_the_bound_of_its_sampler(kind, level, bound):
    with pytest.raises(ConfigError, match=bound) as refusal:
        windowed_config(sampler=kind, noise_level=level)
    assert "inf" not in str(refusal.value)
