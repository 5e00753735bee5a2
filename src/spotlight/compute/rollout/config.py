"""Sections `rollout` and `eval` of a recipe; free of torch."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.section import Section
from spotlight.core.types import NO_WINDOW, SamplerKind, Sampling, Size, Window


class InitialNoise(StrEnum):
    """Whether the samples of a group start from their own noise or from one."""

    PER_SAMPLE = "per_sample"
    SHARED = "shared"


class RolloutConfig(Section):
    """How many samples an iteration makes, and how each is made."""

    prompts: int = Field(default=32, ge=1)
    """Prompts per iteration."""
    group_size: int = 16
    """Samples per prompt; their contrast is what is learned from."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps."""
    sampler: SamplerKind = SamplerKind.ODE
    """How a step inside the window is taken; steps outside it are ODE steps."""
    noise_level: float = Field(default=0.0, ge=0)
    """Strength of the SDE: a of Flow-SDE and CPS, eta of Dance-SDE."""
    window_size: int = Field(default=0, ge=0)
    """Steps of the SDE window; 0 for a pure ODE."""
    window_range: tuple[int, int] = (0, 5)
    """The window lies inside steps [first, last) of this range; one start per group."""
    guidance: float = Field(default=1.0, ge=1)
    """Scale of classifier-free guidance; 1 is without, at half the cost."""
    initial_noise: InitialNoise = InitialNoise.PER_SAMPLE
    """Flow-GRPO learns faster from a shared one, because only the window's noise is credited."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.group_size < 2:
            raise ConfigError(
                f"rollout.group_size is {self.group_size}, but a group needs at least 2 samples to have a contrast; "
                "raise it to 2 or more, 16 is usual."
            )
        if self.sampler is SamplerKind.ODE2:
            raise ConfigError(
                "rollout.sampler is ode2, but pictures that are trained on are drawn as evaluations are, by ode or "
                "with the noise of an SDE; set it to ode and, for previews, explore.solver to ode2."
            )
        stochastic = self.sampler.draws_noise
        if stochastic != (self.window_size > 0):
            raise ConfigError(
                f"rollout.sampler is {self.sampler.value} but rollout.window_size is {self.window_size}; an SDE "
                "sampler needs a window of at least 1 step and the ODE has none, so change one of the two."
            )
        if stochastic and self.noise_level == 0:
            raise ConfigError(
                f"rollout.noise_level is 0, but {self.sampler.value} has no log-probability without noise; set it "
                "above 0: 0.7 is usual for flow_sde, 0.3 for dance_sde, 0.8 for cps."
            )
        if self.sampler is SamplerKind.CPS and self.noise_level > 1:
            raise ConfigError(
                f"rollout.noise_level is {self.noise_level}, but for cps 1 already replaces all of the predicted "
                "noise; set it above 0 and at most to 1: 0.8 is usual."
            )
        first, last = self.window_range
        if stochastic and not 0 <= first <= first + self.window_size <= last <= self.steps - 1:
            raise ConfigError(
                f"a window of {self.window_size} steps does not fit rollout.window_range {first}..{last} of "
                f"{self.steps} steps, the last of which is never sampled as an SDE; widen the range or shrink "
                "the window."
            )
        return self

    def sampling(self, size: Size, window: Window = NO_WINDOW) -> Sampling:
        return Sampling(
            steps=self.steps,
            size=size,
            sampler=self.sampler,
            noise_level=self.noise_level,
            window=window,
            guidance=self.guidance,
        )

    def window_of_group(self, run_seed: int, iteration: int, group: int) -> Window:
        """One window for a whole group: windows that differ inside a group collapse training."""
        if not self.window_size:
            return NO_WINDOW
        first, last = self.window_range
        rng = generator(derive_key(Purpose.WINDOW, run_seed, iteration, group))
        return Window(int(rng.integers(first, last - self.window_size + 1)), self.window_size)


class EvalConfig(Section):
    """Held-out evaluation: fixed prompts and seeds, ODE, no guidance unless asked for."""

    every: int = Field(default=5, ge=1)
    """Iterations between evaluations."""
    prompts: int = Field(default=192, ge=1)
    """Held-out pictures: one of each prompt, and again from the first where there are fewer prompts."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps."""
    guidance: float = Field(default=1.0, ge=1)
    """Scale of classifier-free guidance."""
    judge_every: int = Field(default=20, ge=1)
    """Iterations between evaluations that the second judge (`reward.judge`) scores as well: of those that `every`
    makes, the first, those at a multiple of this, and the last."""

    def sampling(self, size: Size) -> Sampling:
        return Sampling(steps=self.steps, size=size, guidance=self.guidance)
