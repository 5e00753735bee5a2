"""Section `explore` of a recipe; free of torch."""

from enum import StrEnum
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from spotlight.core.errors import ConfigError
from spotlight.core.section import NumberOrAuto, Section
from spotlight.core.types import SamplerKind

AUTO: Literal["auto"] = "auto"


class SelectedNoise(StrEnum):
    """The noise that a preview and its exact rollout share, and so what selection is on."""

    INITIAL = "initial"
    """The initial noise; window noise is drawn anew. Flow-GRPO credits window noise alone, so the choice does not bias
    its gradient at a given start. NFT credits the whole sample: it trains on exactly what was selected (`baseline`)."""
    PATH = "path"
    """Initial and window noise: ranks better, but selects on the actions that are credited."""


class PlanKind(StrEnum):
    """Method that decides the number of previewed seeds and their steps."""

    BANDIT = "bandit"
    FIXED = "fixed"


class Solver(StrEnum):
    """Solver of previews with fewer steps than the exact rollout; both take one forward per step."""

    ODE = "ode"
    """Euler steps, as the rollout's own outside its window."""
    ODE2 = "ode2"
    """Second-order steps. They rank base models of words and scenes better, or as well, with 4 and 5 of 10 steps
    (docs/results/solvers.json)."""

    @property
    def sampler(self) -> SamplerKind:
        return SamplerKind(self.value)


class Precision(StrEnum):
    """Arithmetic of previews."""

    EXACT = "exact"
    """That of rollouts; adapters are rounded to the type of the base weights."""
    FP8 = "fp8"
    """Linear layers in fp8. Needs a compiled model, frozen base weights (train.lora) and half of their memory more."""


class Timing(StrEnum):
    """When previews are drawn."""

    BESIDE = "beside"
    """While the gang trains, on slots that would be idle."""
    INLINE = "inline"
    """After training, on all slots, and the loop waits: what exploration costs without idle slots."""


class Baseline(StrEnum):
    """Baseline of the advantages of a group with selected seeds."""

    KEPT = "kept"
    """The mean of the group. Its seeds are extremes, so that mean is not the prompt's."""
    AUDITED = "audited"
    """An estimate of the mean of all seeds of the prompt, from the group and its audited seeds (`seeds.py`). Audited
    seeds enter the mean, never the loss."""


class ExploreConfig(Section):
    """Previews of the next prompts' seeds on idle slots, while training runs."""

    enabled: Literal["auto", "on", "off"] = "auto"
    """auto is on with nft and off with flow_grpo, whose loss credits window noise and gained nothing from selection."""
    plan: PlanKind = PlanKind.FIXED
    """fixed previews `seeds` per prompt with `steps`; bandit learns both within the time that training leaves. With
    missing slots and `overrun` auto, a fixed plan previews some prompts with up to `seeds` each, or none."""
    seeds: int = Field(default=128, ge=1)
    """Seeds per prompt of a fixed plan; more than fit beside training cost nothing, as they are cut off when it ends.
    Where training waits for them (`deterministic`, `timing` inline, `overrun`) plan few: 32 of 3 or 4 steps, say.
    With missing slots and `overrun` auto it is the largest number of a prompt."""
    most_seeds: int = Field(default=256, ge=1)
    """Largest number of seeds per prompt in any plan: beyond it the gain grows like the logarithm, scoring does not."""
    steps: int = Field(default=8, ge=1)
    """Denoising steps of a fixed plan. With 128 seeds, 8 of 10 steps were best of some fifty plans, or within 0.01 of
    the best, on all workloads of benchmarks/planner/."""
    precision: Precision = Precision.EXACT
    """exact or fp8: on an H200 an fp8 preview of Qwen-Image at 512x512 takes 0.7 of the time. The audit measures how
    well it ranks."""
    candidates: float = Field(default=1.0, ge=1)
    """Previewed prompts per rolled-out prompt; those whose previews differ most are rolled out. The others are skipped
    until the prompt order reaches them again. Needs a fixed plan."""
    scouts: int = Field(default=0, ge=0)
    """Seeds of every candidate, at least a group's, that are previewed before the candidates that differ least are
    dropped, so that only the rest get all `seeds`; 0: all candidates do."""
    arms: tuple[Annotated[int, Field(ge=1)], ...] = (2, 3, 4, 5, 6, 8, 10)
    """Step counts that the bandit chooses from; those beyond the exact rollout's steps are left out."""
    alpha: float = Field(default=0.5, ge=0)
    """Standard deviations of optimism about step counts; 0 is greedy."""
    discount: float = Field(default=0.9, gt=0, le=1)
    """Weight of an observation after one more iteration."""
    audit_share: float = Field(default=0.1, gt=0, le=1)
    """Probability with which an unselected seed is rolled out too, to measure previews; charged, never trained on."""
    baseline: Baseline = Baseline.KEPT
    """Baseline of the advantages. If no audited seed of a prompt has a reward, `audited` is `kept`: with U
    unselected seeds this happens with probability (1 - audit_share)^U. Audits are then drawn right after the rollouts
    of their group, because its advantages depend on them."""
    solver: Solver = Solver.ODE
    """Solver of previews with fewer steps than the exact rollout."""
    noise: SelectedNoise = SelectedNoise.INITIAL
    """The noise that previews and exact rollouts share."""
    timing: Timing = Timing.BESIDE
    """When previews are drawn."""
    overrun: NumberOrAuto = "auto"
    """Time that planned previews may run after training, as a share of its time; unfinished ones are then discarded.
    Where no slot is free beside training, a fixed plan is drawn in this time alone. `auto` is 0 while no slot is
    missing. With missing slots, previews are planned after training too, on all slots, as far as their expected gain is
    worth their seconds (`shortage.py`); where none are worth it, the run does not explore. With `candidates` above 1 or
    `pipeline.asynchrony` it is always 0, because the gain is then not known. The wait may be twice the predicted one,
    as slots may be lost meanwhile. In deterministic mode `auto` does nothing, as all planned previews are awaited."""
    margin: float = Field(default=-0.1, gt=-1, lt=1)
    """Share of the predicted training time that a learned plan leaves unused. Below 0 it holds more previews than are
    predicted to fit: an unfinished preview costs nothing when training ends, an idle slot does. Where training would
    wait for previews (`timing` inline, or `overrun`) it counts as 0."""

    @field_validator("enabled", mode="before")
    @classmethod
    def _on_and_off_are_words(cls, value: object) -> object:
        """YAML reads on and off as true and false."""
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @model_validator(mode="after")
    def _has_arms(self) -> Self:
        if not self.arms or len(set(self.arms)) < len(self.arms):
            raise ConfigError(
                f"explore.arms is {list(self.arms)}, but the bandit needs at least one step count and each once; list "
                "different step counts, such as [3, 4, 5, 6, 8]."
            )
        return self

    @model_validator(mode="after")
    def _candidates_are_chosen_from(self) -> Self:
        if self.candidates > 1 and self.plan is not PlanKind.FIXED:
            raise ConfigError(
                f"explore.candidates is {self.candidates:g} but explore.plan is {self.plan.value}, which plans for the "
                "prompts that are rolled out; set explore.plan to fixed, or explore.candidates to 1."
            )
        if self.scouts and not (self.candidates > 1 and self.scouts < self.seeds):
            raise ConfigError(
                f"explore.scouts is {self.scouts} with explore.seeds {self.seeds} and explore.candidates "
                f"{self.candidates:g}, but scouts are the first of a prompt's seeds and choose among more prompts than "
                "are rolled out; set explore.scouts to 0, or explore.candidates above 1 and explore.seeds above "
                "explore.scouts."
            )
        return self

    @model_validator(mode="after")
    def _solves_what_it_draws(self) -> Self:
        if self.solver is Solver.ODE2 and self.noise is SelectedNoise.PATH:
            raise ConfigError(
                "explore.solver is ode2 but explore.noise is path, whose previews take the steps of the exact "
                "rollout; set explore.solver to ode, or explore.noise to initial."
            )
        return self

    @property
    def is_cut_off(self) -> bool:
        """Whether unfinished previews are discarded, so that planning too many costs nothing."""
        return self.timing is Timing.BESIDE and self.overrun in (0, AUTO)

    @property
    def follows_the_fleet(self) -> bool:
        """Whether previews may be planned after training where slots are missing."""
        return self.timing is Timing.BESIDE and self.overrun == AUTO

    @property
    def is_drawn_afterwards(self) -> bool:
        """Whether previews that found no slot beside training are drawn by the trained workers, and waited for.

        A learned plan holds what fits beside training, which is nothing then.
        """
        return self.plan is PlanKind.FIXED and not self.is_cut_off

    @property
    def planned_share(self) -> float:
        """Share of the predicted training time that a learned plan fills with previews."""
        return 1 - (self.margin if self.is_cut_off else max(0.0, self.margin))

    def candidates_for(self, prompts: int) -> int:
        """Number of previewed prompts where `prompts` are rolled out."""
        return round(prompts * self.candidates)

    def planned_previews(self, prompts: int) -> int:
        """Number of previews of a fixed plan for an iteration of `prompts` prompts."""
        first = self.scouts or self.seeds
        return first * self.candidates_for(prompts) + (self.seeds - first) * prompts

    def check_baseline(self, loss: str) -> None:
        """Refuse a baseline that the run has no audits for."""
        if self.baseline is Baseline.AUDITED and not self.is_on(loss):
            raise ConfigError(
                f"explore.baseline is audited but explore.enabled is {self.enabled} with {loss}, so that no seed is "
                "selected or audited and a group's mean is the prompt's; set explore.baseline to kept, or "
                "explore.enabled to on."
            )

    def is_on(self, loss: str) -> bool:
        """Whether a run with this loss explores."""
        return self.enabled == "on" or (self.enabled == "auto" and loss == "nft")
