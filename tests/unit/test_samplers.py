"""Schedules against golden tables; sampler steps against float64 derivations written in another form."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spotlight.compute.rollout import samplers, schedules
from spotlight.core.errors import ConfigError, InputError
from spotlight.core.types import SamplerKind

ODE, ODE2 = SamplerKind.ODE, SamplerKind.ODE2
FLOW, DANCE, CPS = SamplerKind.FLOW_SDE, SamplerKind.DANCE_SDE, SamplerKind.CPS
STOCHASTIC = ((FLOW, 0.7), (FLOW, 1.2), (DANCE, 0.3), (CPS, 0.8))

QWEN_512 = "1 .928970 .851485 .766624 .673281 .570117 .455497 .327400 .183300 .02 0"
QWEN_1024 = "1 .936978 .866951 .788682 .700624 .600818 .486747 .355115 .201530 .02 0"
FLUX_512 = "1 .944129 .882497 .814164 .737974 .652489 .555899 .445888 .319451 .172612 0"
SD3 = "1 .960129 .913349 .857692 .790368 .707278 .602151 .464876 .278049 .008929 0"
QWEN_512_NOISE_12 = "1.2 1.208004 .837025 .664485 .553293 .467863 .392820 .317814 .229734 .024244"
QWEN_1024_NOISE_12 = "1.2 1.224431 .856978 .687936 .579952 .497229 .423982 .348979 .256860 .024244"
FLUX_512_NOISE_07 = ".7 .714374 .501472 .404425 .343471 .298104 .259760 .223280 .183777 .132836"
FLUX_1024_NOISE_07 = ".7 .740461 .534391 .444878 .391978 .355190 .325796 .298006 .264945 .211340"
SD3_NOISE_07 = ".7 .742964 .536152 .445897 .391794 .352797 .319070 .282007 .225360 .006278"
# Each pipeline's mu: linear in the tokens, from 0.5 at 256 to 0.9 at 8192 (Qwen-Image) or to 1.15 at 4096 (FLUX).
QWEN_512_MU, QWEN_1024_MU = 0.5 + 0.4 * 768 / 7936, 0.5 + 0.4 * 3840 / 7936
FLUX_512_MU, FLUX_1024_MU = 0.5 + 0.65 * 768 / 3840, 1.15


def sampled(kind, x, v, sigma_B, sigma_next_B, sigma_second, noise_level, noise):
    return samplers.transition(kind, x, v, sigma_B, sigma_next_B, sigma_second, noise_level).sample(noise)


def exponential_shift(mu: float, terminal: float | None, steps: int = 10) -> Tensor:
    """Float64 derivation of the resolution-dependent schedules: logit(sigma) moves by mu."""
    unshifted = torch.arange(steps, 0, -1, dtype=torch.float64) / steps
    sigmas = torch.sigmoid(torch.logit(unshifted) + mu)
    if terminal is not None:
        sigmas = 1 - (1 - sigmas) * (1 - terminal) / (1 - sigmas[-1])
    return torch.cat([sigmas, torch.zeros(1, dtype=torch.float64)])


def doubly_shifted(shift: float, steps: int = 10) -> Tensor:
    """Float64 derivation of SD3's: the smallest of 1000 sigmas is shifted, then all of them are (again)."""

    def shifted(sigma: Tensor) -> Tensor:
        return 1 / (1 + (1 / sigma - 1) / shift)

    smallest = shifted(torch.tensor(1e-3, dtype=torch.float64))
    fractions = torch.arange(steps, dtype=torch.float64) / (steps - 1)
    return torch.cat([shifted(1 + (smallest - 1) * fractions), torch.zeros(1, dtype=torch.float64)])


def assert_matches_print(values: Tensor, printed: str, tolerance: float = 1e-7) -> None:
    for value, text in zip(values.tolist(), printed.split(), strict=True):
        digits = len(text.partition(".")[2])
        # Half a unit of the last printed digit, and float32's own error.
        assert value == pytest.approx(float(text), abs=0.5 * 10.0**-digits + tolerance)


@pytest.mark.parametrize(
    ("schedule", "derived", "printed"),
    [
        pytest.param(lambda: schedules.qwen_image(1024, 10), (QWEN_512_MU, 0.02), QWEN_512, id="qwen-512"),
        pytest.param(lambda: schedules.qwen_image(4096, 10), (QWEN_1024_MU, 0.02), QWEN_1024, id="qwen-1024"),
        pytest.param(lambda: schedules.flux(1024, 10), (FLUX_512_MU, None), FLUX_512, id="flux-512"),
        pytest.param(lambda: schedules.sd3(10), None, SD3, id="sd3"),
    ],
)
def test_published_schedules(
    schedule: Callable[[], Tensor], derived: tuple[float, float | None] | None, printed: str
) -> None:
    sigmas = schedule()
    reference = doubly_shifted(3.0) if derived is None else exponential_shift(*derived)
    assert sigmas.dtype is torch.float32
    assert sigmas.device.type == "cpu"
    assert (sigmas.double() - reference).abs().max() < 1e-6
    assert_matches_print(sigmas, printed)


@pytest.mark.parametrize("steps", [2, 4, 6, 10, 25, 50])
def test_schedules_fall_from_exactly_one_to_exactly_zero(steps: int) -> None:
    made = [schedules.qwen_image(6400, steps), schedules.flux(4096, steps), schedules.sd3(steps)]
    for sigmas in [*made, schedules.linear(steps), schedules.linear(steps, shift=3.0)]:
        assert sigmas.shape == (steps + 1,)
        assert sigmas[0].item() == 1.0
        assert sigmas[-1].item() == 0.0
        assert (sigmas.diff() < 0).all()


def test_linear_schedule_and_its_shift() -> None:
    assert schedules.linear(4).tolist() == [1.0, 0.75, 0.5, 0.25, 0.0]
    # At sigma 1/2 the odds of noise are 1; a shift of 3 makes them 3.
    assert schedules.linear(2, shift=3.0).tolist() == [1.0, 0.75, 0.0]


def test_impossible_schedules_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 steps or more"):
        schedules.qwen_image(1024, 1)
    with pytest.raises(ConfigError, match="0 steps"):
        schedules.linear(0)
    with pytest.raises(ConfigError, match="-2"):
        schedules.linear(4, shift=-2.0)
    with pytest.raises(ConfigError, match="0 image tokens"):
        schedules.flux(0, 4)


@pytest.mark.parametrize(
    ("sigmas", "derived", "level", "printed", "tolerance"),
    [
        pytest.param(
            schedules.qwen_image(1024, 10), exponential_shift(QWEN_512_MU, 0.02), 1.2, QWEN_512_NOISE_12, 1e-6,
            id="qwen-512",
        ),
        pytest.param(
            schedules.qwen_image(4096, 10), exponential_shift(QWEN_1024_MU, 0.02), 1.2, QWEN_1024_NOISE_12, 1e-6,
            id="qwen-1024",
        ),
        pytest.param(
            schedules.flux(1024, 10), exponential_shift(FLUX_512_MU, None), 0.7, FLUX_512_NOISE_07, 1e-6,
            id="flux-512",
        ),
        # 1 - sigmas[1] is 0.034 here, of which a float32 sigma leaves only six digits.
        pytest.param(
            schedules.flux(4096, 10), exponential_shift(FLUX_1024_MU, None), 0.7, FLUX_1024_NOISE_07, 2e-6,
            id="flux-1024",
        ),
        pytest.param(schedules.sd3(10), doubly_shifted(3.0), 0.7, SD3_NOISE_07, 1e-6, id="sd3"),
    ],
)  # fmt: skip
def test_flow_sde_noise_scales_of_published_schedules_match_float64(
    sigmas: Tensor, derived: Tensor, level: float, printed: str, tolerance: float
) -> None:
    x = torch.zeros(10, 2, 3)
    made = samplers.transition(FLOW, x, x, sigmas[:-1], sigmas[1:], sigmas[1].item(), level).std_B
    # Once from the same float32 sigmas, which is the sampler alone, and once from sigmas derived here.
    for source, limit in ((sigmas.double(), {"rel": 1e-6}), (derived, {"rel": 0, "abs": tolerance})):
        finite = [source[max(step, 1)].item() for step in range(10)]
        for step, std in enumerate(made.tolist()):
            sigma, following = source[step].item(), source[step + 1].item()
            assert std == pytest.approx(level * math.sqrt(sigma * (sigma - following) / (1 - finite[step])), **limit)
    assert_matches_print(made, printed, tolerance)


def random_rows(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, float]:
    """x, v, noise and one row for each step of a schedule, the singular first and last ones among them."""
    sigmas = schedules.qwen_image(1024, 10).to(dtype)
    generator = torch.Generator().manual_seed(7)
    x, v, noise = torch.randn(3, 10, 5, 4, generator=generator, dtype=torch.float64).to(dtype)
    return x, v, noise, sigmas[:-1], sigmas[1:], sigmas[1].item()


def by_score(
    kind: SamplerKind, level: float, x: Tensor, v: Tensor, sigma: float, following: float, second: float
) -> tuple[Tensor, float, float]:
    """(mean, std, g) of one row from the posterior estimates: Tweedie's score for the SDEs, a rotation for
    CPS."""
    x0, eps = x - sigma * v, x + (1 - sigma) * v
    if kind is CPS:
        std = following * math.sin(level * math.pi / 2)
        return (1 - following) * x0 + math.sqrt(following**2 - std**2) * eps, std, std
    variance_rate = level**2
    if kind is FLOW:
        variance_rate *= sigma / (1 - (second if sigma == 1 else sigma))
    score = -(x - (1 - sigma) * x0) / sigma**2
    elapsed = sigma - following
    mean = x - elapsed * v + elapsed * variance_rate / 2 * score
    return mean, math.sqrt(variance_rate * elapsed), math.sqrt(variance_rate)


@pytest.mark.parametrize(("kind", "level"), STOCHASTIC)
def test_transition_matches_the_score_form(kind: SamplerKind, level: float) -> None:
    x, v, noise, sigma_B, next_B, second = random_rows()
    made = samplers.transition(kind, x, v, sigma_B, next_B, second, level)
    x_next = sampled(kind, x, v, sigma_B, next_B, second, level, noise)
    for row, (sigma, following) in enumerate(zip(sigma_B.tolist(), next_B.tolist(), strict=True)):
        mean, std, g = by_score(kind, level, x[row], v[row], sigma, following, second)
        # The score form divides by sigma^2 and so loses digits at the last step.
        torch.testing.assert_close(made.mean[row], mean, rtol=1e-11, atol=1e-12)
        torch.testing.assert_close(x_next[row], mean + std * noise[row], rtol=1e-11, atol=1e-12)
        assert made.std_B[row].item() == pytest.approx(std, rel=1e-13, abs=0)
        assert made.diffusion_B[row].item() == pytest.approx(g, rel=1e-13, abs=0)


@pytest.mark.parametrize(("kind", "level"), STOCHASTIC)
def test_float32_is_close_to_float64(kind: SamplerKind, level: float) -> None:
    x, v, noise, sigma_B, next_B, second = random_rows(torch.float32)
    exact = sampled(kind, x.double(), v.double(), sigma_B.double(), next_B.double(), second, level, noise.double())
    rough = sampled(kind, x, v, sigma_B, next_B, second, level, noise)
    assert rough.dtype is torch.float32
    torch.testing.assert_close(rough.double(), exact, rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize(("kind", "level"), [(FLOW, 0.7), (DANCE, 0.3)])
def test_log_prob_is_the_mean_gaussian_log_density(kind: SamplerKind, level: float) -> None:
    x, v, noise, sigma_B, next_B, second = random_rows()
    given = samplers.transition(kind, x, v, sigma_B, next_B, second, level)
    x_next = given.sample(1.7 * noise)
    std = given.std_B.view(-1, 1, 1).expand_as(x_next)
    expected_B = torch.distributions.Normal(given.mean, std).log_prob(x_next).mean((1, 2))
    torch.testing.assert_close(samplers.log_prob(kind, x_next, given), expected_B, rtol=1e-12, atol=1e-12)


def test_cps_log_prob_has_neither_scale_nor_constants() -> None:
    x, v, noise, sigma_B, next_B = (part[:9] for part in random_rows()[:5])
    given = samplers.transition(CPS, x, v, sigma_B, next_B, 0.9, 0.8)
    made_B = samplers.log_prob(CPS, given.sample(noise), given)
    expected = [-(std * row).square().mean().item() for std, row in zip(given.std_B, noise, strict=True)]
    assert made_B.tolist() == pytest.approx(expected, rel=1e-12)


def test_first_step_uses_the_second_sigma_in_the_denominator_only() -> None:
    """At sigma 1: g^2 = a^2 / (1 - sigmas[1]), and the velocity's factor is dt, for its (1 - sigma) is 0."""
    one, following = torch.ones(1, dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    x, v = torch.full((1, 1, 1), 2.0, dtype=torch.float64), torch.full((1, 1, 1), 3.0, dtype=torch.float64)
    made = samplers.transition(FLOW, x, v, one, following, 0.8, 0.5)
    g_squared = 0.25 / 0.2
    assert made.diffusion_B.item() == pytest.approx(math.sqrt(g_squared), rel=1e-14)
    assert made.mean.item() == pytest.approx(2 * (1 - g_squared * 0.1 / 2) - 3 * 0.1, rel=1e-14)
    elsewhere = samplers.transition(FLOW, x, v, one * 0.95, following, 0.8, 0.5)
    assert elsewhere.diffusion_B.item() == pytest.approx(0.5 * math.sqrt(0.95 / 0.05), rel=1e-12)


@pytest.mark.parametrize(("kind", "level"), STOCHASTIC)
def test_no_noise_is_the_ode_step_and_has_no_log_prob(kind: SamplerKind, level: float) -> None:
    x, v, noise, sigma_B, next_B, second = random_rows()
    still = sampled(kind, x, v, sigma_B, next_B, second, 0.0, noise)
    torch.testing.assert_close(still, samplers.ode_step(x, v, sigma_B, next_B), rtol=0, atol=1e-14)
    given = samplers.transition(kind, x, v, sigma_B, next_B, second, 0.0)
    with pytest.raises(InputError, match=r"std \[0\.0"):
        samplers.log_prob(kind, still, given)
    moved = sampled(kind, x, v, sigma_B, next_B, second, level, noise)
    assert (moved - still)[:9].abs().flatten(1).max(1).values.min() > 1e-2


def test_last_step() -> None:
    """CPS ends in x0 exactly, without a density; Flow-SDE's std is tiny; neither is trained."""
    x, v, noise, sigma_B, next_B = (part[-1:] for part in random_rows()[:5])
    given = samplers.transition(CPS, x, v, sigma_B, next_B, 0.9, 0.8)
    torch.testing.assert_close(given.sample(noise), x - 0.02 * v, rtol=1e-6, atol=1e-8)
    with pytest.raises(InputError, match="last step"):
        samplers.log_prob(CPS, given.mean, given)
    assert samplers.transition(FLOW, x, v, sigma_B, next_B, 0.9, 1.2).std_B.item() < 0.025
    assert [step for step in range(10) if samplers.trainable(FLOW, step, 10)] == list(range(9))
    assert not any(samplers.trainable(kind, step, 10) for kind in (ODE, ODE2) for step in range(10))
    assert not samplers.trainable(CPS, 0, 1)
    assert not samplers.trainable(CPS, -1, 10)


def test_impossible_sampler_inputs_are_refused() -> None:
    x, v, _, sigma_B, next_B, second = random_rows()
    given = samplers.transition(DANCE, x, v, sigma_B, next_B, second, 0.3)
    for kind in (ODE, ODE2):
        with pytest.raises(InputError, match="ODE"):
            samplers.log_prob(kind, x, given)
        with pytest.raises(InputError, match="ode_step"):
            samplers.transition(kind, x, v, sigma_B, next_B, second, 0.7)
    for level in (-0.1, math.nan, math.inf):
        with pytest.raises(InputError, match=str(level)):
            samplers.transition(FLOW, x, v, sigma_B, next_B, second, level)
    with pytest.raises(InputError, match=r"1\.2 of cps"):
        samplers.transition(CPS, x, v, sigma_B, next_B, second, 1.2)
    rising = samplers.transition(DANCE, x, v, next_B, sigma_B, second, 0.3)
    with pytest.raises(InputError, match="nan"):
        samplers.log_prob(DANCE, x, rising)
    with pytest.raises(TypeError, match="bfloat16"):
        samplers.ode_step(x.bfloat16(), v.bfloat16(), sigma_B, next_B)
    with pytest.raises(TypeError, match="bfloat16"):
        samplers.ode2_step(x, v, sigma_B, next_B, v.bfloat16(), sigma_B)
    with pytest.raises(TypeError, match=r"float32, torch\.float64"):
        samplers.transition(FLOW, x, v.float(), sigma_B, next_B, second, 0.7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("kind", "level"), STOCHASTIC)
def test_rows_do_not_depend_on_their_neighbours(kind: SamplerKind, level: float, dtype: torch.dtype) -> None:
    x, v, noise, sigma_B, next_B, second = random_rows(dtype)
    together = samplers.transition(kind, x, v, sigma_B, next_B, second, level)
    ode = samplers.ode_step(x, v, sigma_B, next_B)
    for i in range(9):
        row = slice(i, i + 1)
        alone = samplers.transition(kind, x[row], v[row], sigma_B[row], next_B[row], second, level)
        assert torch.equal(alone.mean, together.mean[row])
        assert torch.equal(alone.std_B, together.std_B[row])
        assert torch.equal(alone.diffusion_B, together.diffusion_B[row])
        assert torch.equal(samplers.ode_step(x[row], v[row], sigma_B[row], next_B[row]), ode[row])
    first = samplers.Transition(together.mean[:9], together.std_B[:9], together.diffusion_B[:9])
    x_next = first.sample(noise[:9])
    log_prob_B = samplers.log_prob(kind, x_next, first)
    for i in range(9):
        row = slice(i, i + 1)
        alone = samplers.Transition(first.mean[row], first.std_B[row], first.diffusion_B[row])
        assert torch.equal(samplers.log_prob(kind, x_next[row], alone), log_prob_B[row])


def final_std(kind: SamplerKind, level: float, sigmas: Tensor, true_std: float = 0.5) -> float:
    """Std of x0 when x0 ~ Normal(0, true_std^2) is sampled with its exact velocity.

    That velocity is linear in x, so a step maps x = 1 to the factor of the standard deviation and no sampling
    error enters: variance' = factor^2 variance + std^2.
    """
    sigmas = sigmas.double()
    sigma_B, next_B = sigmas[:-1], sigmas[1:]
    marginal_B = (1 - sigma_B) ** 2 * true_std**2 + sigma_B**2
    x = torch.ones(len(sigma_B), 1, 1, dtype=torch.float64)
    v = ((sigma_B - (1 - sigma_B) * true_std**2) / marginal_B).view(-1, 1, 1)
    if kind is ODE:
        factors, stds = samplers.ode_step(x, v, sigma_B, next_B), torch.zeros_like(sigma_B)
    else:
        made = samplers.transition(kind, x, v, sigma_B, next_B, sigmas[1].item(), level)
        factors, stds = made.mean, made.std_B
    variance = 1.0
    for factor, std in zip(factors.flatten().tolist(), stds.tolist(), strict=True):
        variance = factor**2 * variance + std**2
    return math.sqrt(variance)


@pytest.mark.parametrize(
    ("kind", "level", "printed"),
    [(ODE, 0.0, 0.359), (FLOW, 0.7, 0.421), (DANCE, 0.3, 0.377), (CPS, 0.8, 0.308)],
)
def test_ten_steps_are_biased_by_the_known_amount(kind: SamplerKind, level: float, printed: float) -> None:
    assert final_std(kind, level, schedules.sd3(10)) == pytest.approx(printed, abs=6e-4)


@pytest.mark.parametrize(("kind", "level"), [(ODE, 0.0), (FLOW, 0.7), (FLOW, 1.2), (DANCE, 0.3), (DANCE, 1.0)])
def test_ode_and_sdes_keep_the_marginal(kind: SamplerKind, level: float) -> None:
    """First-order integrators: within 1 % at 200 steps and 0.25 % at 3200 (a drift error would stay)."""
    assert final_std(kind, level, schedules.linear(200)) == pytest.approx(0.5, rel=0.01)
    assert final_std(kind, level, schedules.linear(3200)) == pytest.approx(0.5, rel=0.0025)


@pytest.mark.parametrize("level", [0.1, 0.4, 0.8])
def test_cps_shrinks_the_marginal_by_a_known_factor(level: float) -> None:
    """CPS keeps the marginal only if x0 and eps were known; it is given their posterior means.

    The noise of a step does not shrink with dt, so at many steps each sigma reaches the balance of V = V (1 -
    (1-cos) s^2/V*)^2 + s^2 sin^2, which for small sigma is V* (1 + cos)/2 with the angle level * pi/2: the
    std is cos(level * pi/4) of the true one.
    """
    limit = 0.5 * math.cos(level * math.pi / 4)
    assert final_std(CPS, level, schedules.linear(200)) == pytest.approx(limit, rel=0.02)
    assert final_std(CPS, level, schedules.linear(3200)) == pytest.approx(limit, rel=0.003)
