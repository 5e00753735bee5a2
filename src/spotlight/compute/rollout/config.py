"""Sections `rollout` and `eval` of a recipe; free of torch."""

from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from spotlight.core.errors import ConfigError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.section import Section
from spotlight.core.types import NO_WINDOW, SamplerKind, Sampling, Size, Window


class InitialNoise(StrEnum):
    """Whether the samples of a group have separate or shared initial noise."""

    PER_SAMPLE = "per_sample"
    SHARED = "shared"


class RolloutConfig(Section):
    """Number of samples per iteration, and their sampling."""

    prompts: int = Field(default=32, ge=1)
    """Prompts per iteration."""
    group_size: int = 16
    """Samples per prompt; training learns from the contrast between them."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps."""
    sampler: SamplerKind = SamplerKind.ODE
    """Sampler of the steps inside the window; steps outside it are ODE steps."""
    noise_level: float = Field(default=0.0, ge=0)
    """Strength of the SDE: a of Flow-SDE and CPS, eta of Dance-SDE."""
    window_size: int = Field(default=0, ge=0)
    """Number of steps of the SDE window; 0 for a pure ODE."""
    window_range: tuple[int, int] = (0, 5)
    """The window lies inside steps [first, last) of this range; one start per group."""
    guidance: float = Field(default=1.0, ge=1)
    """Scale of classifier-free guidance; 1 turns it off and halves the cost."""
    initial_noise: InitialNoise = InitialNoise.PER_SAMPLE
    """per_sample or shared within a group. Flow-GRPO learns faster from shared noise, because rewards then differ only
    by the window's noise."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.group_size < 2:
            raise ConfigError(
                f"rollout.group_size is {self.group_size}, but a group needs at least 2 samples to have a contrast; "
                "raise it to 2 or more, 16 is usual."
            )
        if self.sampler is SamplerKind.ODE2:
            raise ConfigError(
                "rollout.sampler is ode2, but training samples use ode, as evaluations do, or the noise of an SDE; "
                "set it to ode and, for previews, explore.solver to ode2."
            )
        stochastic = self.sampler.draws_noise
        if stochastic != (self.window_size > 0):
            raise ConfigError(
                f"rollout.sampler is {self.sampler.value} but rollout.window_size is {self.window_size}; an SDE "
                "sampler needs a window of at least 1 step and the ODE has none; change one of the two."
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
        """Return the one window of a group: windows that differ inside a group collapse training."""
        if not self.window_size:
            return NO_WINDOW
        first, last = self.window_range
        rng = generator(derive_key(Purpose.WINDOW, run_seed, iteration, group))
        return Window(int(rng.integers(first, last - self.window_size + 1)), self.window_size)


class EvalConfig(Section):
    """Held-out evaluation: fixed prompts and seeds, ODE, no guidance by default."""

    every: int = Field(default=5, ge=1)
    """Iterations between evaluations."""
    prompts: int = Field(default=192, ge=1)
    """Number of held-out images: one per prompt, again from the first prompt where there are fewer prompts."""
    steps: int = Field(default=10, ge=1)
    """Denoising steps."""
    guidance: float = Field(default=1.0, ge=1)
    """Scale of classifier-free guidance."""
    judge_every: int = Field(default=20, ge=1)
    """Iterations between evaluations that the second judge (`reward.judge`) also scores: of the evaluations of
    `every`, the first, those at a multiple of this, and the last."""

    def sampling(self, size: Size) -> Sampling:
        return Sampling(steps=self.steps, size=size, guidance=self.guidance)
