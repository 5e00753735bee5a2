"""The second-order ODE: its steps by hand, its order, and that the denoising loop takes these steps."""

import math
from collections.abc import Callable

import pytest
import torch
from tiny_models import PROMPTS, RUN_SEED, SIZE, conditions, rolled_out, sample_of, tiny_adapter, tiny_sampling
from torch import Tensor

from spotlight.compute.rollout import samplers, schedules
from spotlight.compute.rollout.noise import initial_noise
from spotlight.compute.rollout.step import RowPlace
from spotlight.core.errors import InputError
from spotlight.core.types import Sample, SamplerKind

ODE, ODE2 = SamplerKind.ODE, SamplerKind.ODE2
ADAPTER = tiny_adapter()


def group(kind: SamplerKind, steps: int = 5) -> list[Sample]:
    return [sample_of(prompt, 3, tiny_sampling(kind, steps=steps)) for prompt in PROMPTS]


def numbers(*values: float) -> list[Tensor]:
    return [torch.tensor([value], dtype=torch.float64) for value in values]


def solved(velocity: Callable[[Tensor, Tensor], Tensor], x: Tensor, sigmas: Tensor, order: int) -> Tensor:
    """From x at sigma 1 to sigma 0; the first step is Euler's."""
    before = None
    for step in range(len(sigmas) - 1):
        now, after = sigmas[step : step + 1], sigmas[step + 1 : step + 2]
        v = velocity(x, now)
        if order == 2 and before is not None:
            x = samplers.ode2_step(x, v, now, after, before, sigmas[step - 1 : step])
        else:
            x = samplers.ode_step(x, v, now, after)
        before = v
    return x


def test_two_steps_by_hand():
    """Steps of 0.1 after 0.4 and of 0.3 after 0.1: 0.8 - 0.1 (5 + 0.125 * 2) and then 0.275 - 0.3 (4 - 1.5 * 1)."""
    at_06, at_05, v_first, v_second, v_third = numbers(0.8, 0.275, 3.0, 5.0, 4.0)
    one, second, third, fourth = numbers(1.0, 0.6, 0.5, 0.2)
    assert samplers.ode2_step(at_06, v_second, second, third, v_first, one).item() == pytest.approx(0.275, rel=1e-14)
    assert samplers.ode2_step(at_05, v_third, third, fourth, v_second, second).item() == pytest.approx(
        -0.475, rel=1e-14
    )


@pytest.mark.parametrize(("order", "factor"), [(1, 2.0), (2, 4.0)])
@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_halved_steps_divide_the_error_by_two_to_the_order(order, factor, shift):
    """dx/dsigma = -2 x + sigma, whose solution is known; with a shift no two steps have one length."""

    def error(steps: int) -> float:
        start = torch.ones(1, dtype=torch.float64)
        found = solved(lambda x, sigma: sigma - 2 * x, start, schedules.linear(steps, shift).double(), order)
        return abs(found.item() - exact)

    # x = sigma / 2 - 1 / 4 + c exp(-2 sigma), and c follows from x = 1 at sigma 1.
    exact = -0.25 + 0.75 * math.exp(2)
    assert error(80) / error(160) == pytest.approx(factor, rel=0.1)
    assert error(40) / error(80) == pytest.approx(factor, rel=0.2)


def test_rows_do_not_depend_on_their_neighbours():
    sigmas = schedules.qwen_image(1024, 10)
    x, v, before = torch.randn(3, 9, 5, 4, generator=torch.Generator().manual_seed(7))
    given = (x, v, sigmas[1:-1], sigmas[2:], before, sigmas[:-2])
    together = samplers.ode2_step(*given)
    for row in range(9):
        assert torch.equal(samplers.ode2_step(*(part[row : row + 1] for part in given)), together[row : row + 1])


@pytest.mark.parametrize(("kind", "order"), [(ODE, 1), (ODE2, 2)])
@torch.no_grad()
def test_rolled_out_samples_are_those_of_a_plain_loop_to_the_last_bit(kind, order):
    samples = group(kind)
    cond = conditions(ADAPTER, samples)
    x = initial_noise(RUN_SEED, samples, ADAPTER.latent_shape(SIZE))
    velocity = lambda x, sigma: ADAPTER.velocity(x, sigma.expand(len(x)), cond, None, 1.0, SIZE)  # noqa: E731
    assert torch.equal(rolled_out(ADAPTER, samples).x0_BSC, solved(velocity, x, ADAPTER.schedule(SIZE, 5), order))


def test_second_order_takes_its_first_step_as_the_ode_does_and_no_other():
    one, two = ([rolled_out(ADAPTER, group(kind, steps)).x0_BSC for kind in (ODE, ODE2)] for steps in (1, 2))
    assert torch.equal(*one)
    assert not torch.isclose(*two).all(-1).any()


def test_step_without_the_previous_velocity_is_refused():
    (second, *_), (first, *_) = group(ODE2), group(ODE)
    velocity_SC = torch.zeros(ADAPTER.latent_shape(SIZE))
    for sample, step, velocity in ((second, 1, None), (second, 0, velocity_SC), (first, 1, velocity_SC)):
        with pytest.raises(InputError, match=f"step {step} of a {sample.sampling.sampler.value} sample has (no|a) "):
            RowPlace(sample, step, [1.0, 0.5, 0.0], RUN_SEED, velocity)
