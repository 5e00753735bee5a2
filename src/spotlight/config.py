"""A run's configuration: recipes in YAML that extend and join one another, dotted overrides, unknown keys refused.

Does not import torch, so that a mistake in a recipe is reported before anything heavy is loaded.
"""

from collections.abc import Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any, Self, get_args

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from spotlight.assets import asset
from spotlight.budget import BudgetConfig
from spotlight.compute.data.config import DataConfig
from spotlight.compute.data.prompts import run_prompts
from spotlight.compute.memory.memory_load import RolloutLoad, Workload
from spotlight.compute.models.catalogue import ModelFacts, facts_of
from spotlight.compute.models.config import FLOAT32, ModelConfig, found_device
from spotlight.compute.rewards import registry
from spotlight.compute.rewards.config import RewardConfig, SecondJudge, Term
from spotlight.compute.rollout.config import EvalConfig, InitialNoise, RolloutConfig
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig, NftConfig, TrainConfig
from spotlight.control.advantage import StdMode
from spotlight.control.explore.config import ExploreConfig, PlanKind, Precision, SelectedNoise
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.core.errors import ConfigError, UnknownSetting, suggestion
from spotlight.core.run_files import is_file
from spotlight.core.section import Section
from spotlight.folder import OutputConfig
from spotlight.pools.config import ClusterConfig, MarketConfig

LOSSES: Mapping[str, type[Section]] = {"nft": NftConfig, "flow_grpo": FlowGrpoConfig}
DEFAULT_LOSS = "nft"


class RunConfig(Section):
    """Everything that defines a run."""

    seed: int = 0
    """Run seed: all randomness of the run derives from it."""
    iterations: int = Field(default=60, ge=1)
    """Each rolls out `rollout.prompts` prompts and takes `train.updates_per_iteration` optimizer steps."""
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    reward: RewardConfig = RewardConfig()
    algorithm: AlgorithmConfig = NftConfig()
    rollout: RolloutConfig = RolloutConfig()
    train: TrainConfig = TrainConfig()
    eval: EvalConfig = EvalConfig()
    explore: ExploreConfig = ExploreConfig()
    pipeline: PipelineConfig = PipelineConfig()
    cluster: ClusterConfig = ClusterConfig()
    market: MarketConfig = MarketConfig()
    budget: BudgetConfig = BudgetConfig()
    output: OutputConfig = OutputConfig()
    deterministic: bool = False
    """Same bits after any loss: fixed row counts, a fixed preview plan, planned previews awaited. Slower."""

    @property
    def explores(self) -> bool:
        return self.explore.is_on(self.algorithm.kind)

    def rewards(self, facts: ModelFacts) -> tuple[Term, ...]:
        """The rewards to train on; raises ConfigError if neither the recipe nor the model names one."""
        if self.reward.is_family_own and facts.reward is None:
            raise ConfigError(
                f"reward.name is not set, and {facts.family} has no reward of its own; set it to one of "
                f"{', '.join(registry.names())}, or to package.module:function."
            )
        return self.reward.rewards(facts.reward or "")

    def second_judge(self, family_judge: str | None) -> SecondJudge | None:
        """The judge of held-out pictures beside the reward; None in a paced run, which draws no pictures."""
        name = self.reward.judge or (family_judge if self.reward.is_family_own else None)
        if name is None or self.cluster.pace is not None:
            return None
        return SecondJudge(name=name, every=self.eval.judge_every, last=self.iterations)

    @property
    def samples_per_slot(self) -> int:
        """Rollouts per iteration and slot that rolls out, rounded up."""
        cluster = self.cluster
        slots = (cluster.reserved + cluster.spot) * cluster.slots - (0 if self.pipeline.tag else cluster.gang)
        return -(-self.rollout.prompts * self.rollout.group_size // slots)

    @property
    def shards(self) -> int:
        """Ranks that share the weights of one model."""
        return self.cluster.gang if self.train.is_sharded else 1

    def workload(self, facts: ModelFacts, longest_prompt: str) -> Workload:
        """What the memory of the run's processes depends on."""
        rollouts = RolloutLoad(
            size=facts.size(self.data.size),
            text_tokens=facts.text_tokens(self.model, longest_prompt),
            guidance=self.rollout.guidance,
            window=self.rollout.window_size,
            previews=self.explores,
            fp8=self.explores and self.explore.precision is Precision.FP8,
            overlaps=self.pipeline.gap and self.pipeline.tag,
        )
        return Workload.of(facts, self.model, self.train, self.algorithm, rollouts, self.pipeline.asynchrony)

    @model_validator(mode="after")
    def _rewards_exist(self) -> Self:
        """A misspelt name is reported before the model is loaded and the base is evaluated."""
        for reward in self.reward.names:
            registry.check_name(reward)
        return self

    @model_validator(mode="after")
    def _market_has_its_nodes(self) -> Self:
        self.cluster.check_market(self.market)
        self.budget.check_fallback(self.market)
        trace = self.market.replayed(self.cluster.spot)
        names = [spec.name for spec in self.cluster.spot_nodes()]
        unknown = [name for name in trace.nodes if name not in names] if trace is not None else []
        if unknown:
            raise ConfigError(
                f"the trace '{self.market.trace}' has the node '{unknown[0]}' but the run's spot nodes are "
                f"{names[0]} to {names[-1]}, so its events have no target; rename its nodes or take another trace."
            )
        return self

    @model_validator(mode="after")
    def _selection_is_of_what_is_kept(self) -> Self:
        shared = self.rollout.initial_noise is InitialNoise.SHARED
        if self.explores and shared and self.explore.noise is SelectedNoise.INITIAL:
            raise ConfigError(
                "explore.noise is initial but rollout.initial_noise is shared, so the noise that previews rank would "
                "be thrown away; set rollout.initial_noise to per_sample, explore.noise to path, or explore.enabled to "
                "off."
            )
        return self

    @model_validator(mode="after")
    def _baseline_has_audits(self) -> Self:
        self.explore.check_baseline(self.algorithm.kind)
        return self

    @model_validator(mode="after")
    def _scouts_make_a_group(self) -> Self:
        if self.explores and 0 < self.explore.scouts < self.rollout.group_size:
            raise ConfigError(
                f"explore.scouts is {self.explore.scouts} but rollout.group_size is {self.rollout.group_size}, and "
                "candidates are chosen by the group that their scouts would make; set explore.scouts to at least "
                f"{self.rollout.group_size}, or to 0."
            )
        return self

    @model_validator(mode="after")
    def _paths_are_whole(self) -> Self:
        explore = self.explore
        whole = explore.plan is PlanKind.FIXED and explore.steps == self.rollout.steps
        if self.explores and explore.noise is SelectedNoise.PATH and not whole:
            raise ConfigError(
                f"explore.noise is path but explore.plan is {explore.plan.value} with {explore.steps} of "
                f"{self.rollout.steps} steps, and a shorter preview cannot draw the noise of the whole path; set "
                f"explore.plan to fixed and explore.steps to {self.rollout.steps}, or explore.noise to initial."
            )
        return self

    @model_validator(mode="after")
    def _parts_have_advantages(self) -> Self:
        if self.pipeline.gap and self.algorithm.advantage.std is StdMode.ITERATION:
            raise ConfigError(
                "pipeline.gap is on but algorithm.advantage.std is iteration, and such advantages need the rewards of "
                "the whole iteration before anything can be trained; set algorithm.advantage.std to lagged or group, "
                "or pipeline.gap to false."
            )
        return self

    @model_validator(mode="after")
    def _some_slot_rolls_out(self) -> Self:
        cluster = self.cluster
        if not self.pipeline.tag and (cluster.reserved + cluster.spot) * cluster.slots <= cluster.gang:
            raise ConfigError(
                f"pipeline.tag is off but cluster.reserved is {cluster.reserved} with a gang of {cluster.gang} and no "
                "spot node, so every slot only trains and none rolls out; set pipeline.tag to true, or add nodes."
            )
        return self

    @model_validator(mode="after")
    def _ranks_can_train(self) -> Self:
        self.train.check_ranks(self.cluster.gang, self.pipeline.tag, self.cluster.gang_elastic)
        self.cluster.check_sequence_ranks(self.train.sequence_ranks)
        if self.deterministic:
            self.train.check_deterministic()
            self.cluster.check_deterministic()
        return self

    @model_validator(mode="after")
    def _deterministic_plans_are_fixed(self) -> Self:
        if self.deterministic and self.explores and self.explore.plan is not PlanKind.FIXED:
            raise ConfigError(
                f"deterministic is on but explore.plan is {self.explore.plan.value}, which follows measured times; set "
                "explore.plan to fixed, or explore.enabled to off."
            )
        return self

    @model_validator(mode="after")
    def _loss_fits_sampler(self) -> Self:
        if isinstance(self.algorithm, FlowGrpoConfig) and not self.rollout.window_size:
            raise ConfigError(
                f"algorithm.kind is flow_grpo but rollout.sampler is {self.rollout.sampler.value} without a window, "
                "and that loss credits the noise of SDE steps; set rollout.sampler to flow_sde, dance_sde or cps with "
                "a noise_level and a window_size, or use nft."
            )
        return self


def recipe_names() -> list[str]:
    return sorted(path.stem for path in asset("recipes").glob("*.yaml"))


def load_config(recipe: str, overrides: Sequence[str] = (), is_stored: bool = False) -> RunConfig:
    """Load shipped recipes or YAML files, joined by `+` (the last one wins), with `section.key=value` overrides on top.

    The model and the prompt files must exist, unless the settings are stored in a run (`is_stored`), which has copies.
    """
    parts = {part: _read_recipe(part, _path_of(part, Path()), seen=()) for part in _parts(recipe)}
    settings = reduce(_extended, parts.values())
    given: dict[str, Any] = {}
    for override in overrides:
        given = _merged(given, _nested(override, _merged(settings, given)))
    settings = _extended(settings, given)
    if isinstance(settings.get("algorithm"), dict):
        settings["algorithm"] = {"kind": DEFAULT_LOSS, **settings["algorithm"]}
    try:
        config = RunConfig.model_validate(settings)
    except ValidationError as error:
        raise _explained(error.errors()[0], settings, parts, overrides) from error
    model = config.model.model_copy(update={"device": found_device(config.model.device)})
    config = config.model_copy(update={"model": model})
    if not is_stored:
        facts = facts_of(config.model.name)
        check_model(config, facts)
        run_prompts(config.data, facts.world)
    return config.model_copy(update={"cluster": config.cluster.with_fixed_rows(config.deterministic)})


def check_model(config: RunConfig, facts: ModelFacts) -> None:
    """Refuse settings that the model cannot have."""
    facts.size(config.data.size)
    config.rewards(facts)
    config.cluster.elastic.check(facts.heads, config.cluster.slots)
    if config.train.lora is None and facts.precision(config.model) != FLOAT32:
        raise ConfigError(
            f"train.lora is not set but {facts.family} computes in {facts.precision(config.model)}, in which the small "
            "steps of an optimizer round to nothing; set train.lora.rank, or model.dtype to float32."
        )


def _parts(recipe: str) -> list[str]:
    """The parts of `words-nft+spotlight`; a file may have a plus sign in its name."""
    parts = [recipe] if is_file(Path(recipe)) else recipe.split("+")
    if not all(parts) or len(set(parts)) < len(parts):
        raise ConfigError(
            f"the recipe '{recipe}' has an empty part or one part twice, but its parts are merged from left to right; "
            "join different recipes with one + between two."
        )
    return parts


def _path_of(recipe: str, folder: Path) -> Path:
    """Path of a shipped recipe or of a file, relative to the folder of the recipe that names it."""
    if recipe.endswith((".yaml", ".yml")):
        path = folder / recipe
        if not is_file(path):
            raise ConfigError(f"the recipe file {path} does not exist; check the path, or name a shipped recipe.")
        return path.resolve()
    if recipe not in recipe_names():
        raise ConfigError(f"there is no recipe '{recipe}': {suggestion(recipe, recipe_names())}")
    return asset(f"recipes/{recipe}.yaml")


def _read_recipe(recipe: str, path: Path, seen: tuple[Path, ...]) -> dict[str, Any]:
    if path in seen:
        circle = " -> ".join(part.stem for part in (*seen[seen.index(path) :], path))
        raise ConfigError(f"the recipe '{recipe}' extends itself ({circle}); remove one `extends` to break the circle.")
    content = _yaml(path.read_bytes(), f"the recipe {path}") or {}
    if not isinstance(content, dict):
        raise ConfigError(
            f"the recipe {path} holds a {type(content).__name__}, not sections; write `section: {{...}}`."
        )
    parent = content.pop("extends", None)
    if parent is None:
        return content
    if not isinstance(parent, str):
        raise ConfigError(f"the recipe {path} extends {parent!r}, but a recipe extends one other; write its name.")
    return _extended(_read_recipe(parent, _path_of(parent, path.parent), (*seen, path)), content)


def _yaml(text: str | bytes, what: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{what} is not YAML ({reason}); correct it there.") from error


def _extended(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`; if `top` names other rewards, those of `base` go with their options."""
    below, above = base.get("reward") or {}, top.get("reward") or {}
    replaced: tuple[str, ...] = ()
    if isinstance(below, dict) and isinstance(above, dict):
        if above.get("terms"):
            replaced = ("name", "options")
        elif above.get("name", below.get("name")) != below.get("name"):
            replaced = ("options", "terms", "combine")
    if replaced:
        base = {**base, "reward": {key: value for key, value in below.items() if key not in replaced}}
    return _merged(base, top)


def _merged(base: Mapping[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """`top` over `base`, section by section; a section of another `kind` (a loss) is replaced as a whole."""
    result = dict(base)
    for key, value in top.items():
        below = result.get(key)
        if isinstance(below, dict) and isinstance(value, dict):
            kind = below.get("kind", DEFAULT_LOSS)
            result[key] = _merged(below, value) if value.get("kind", kind) == kind else value
        else:
            result[key] = value
    return result


def _nested(override: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """`section.key=value` as sections; the value is read as YAML."""
    path, equals, value = override.partition("=")
    *sections, key = path.split(".")
    if not equals or not all((*sections, key)):
        raise ConfigError(f"the override '{override}' is not of the form section.key=value; write it so.")
    place: Any = settings
    for section in sections:
        place = place.get(section) or {}
        if not isinstance(place, dict):
            raise ConfigError(
                f"the override '{override}' goes into '{section}', which is the value {place!r}, not a section; "
                f"write {path.partition(f'.{key}')[0]}=VALUE."
            )
    nested: dict[str, Any] = {key: _yaml(value, f"the value of the override '{override}'")}
    for section in reversed(sections):
        nested = {section: nested}
    return nested


def _explained(
    error: ErrorDetails, settings: Mapping[str, Any], parts: Mapping[str, Any], overrides: Sequence[str]
) -> ConfigError:
    """One pydantic error as a sentence: what is wrong, why, what to do."""
    location = [str(part) for part in error["loc"] if part not in LOSSES]
    dotted = ".".join(location)
    given = [override for override in overrides if f"{override.partition('=')[0]}.".startswith(f"{dotted}.")]
    source = f"the override '{given[-1]}'" if given else f"the recipe '{_setter(location, parts)}'"
    found = error.get("input")
    if error["type"] == "extra_forbidden":
        known = suggestion(location[-1], _keys_at(location[:-1], settings))
        return UnknownSetting(f"{source} sets '{dotted}', which does not exist: {known}", dotted)
    if error["type"] == "union_tag_invalid":
        kind = str(found.get("kind")) if isinstance(found, dict) else str(found)
        return ConfigError(f"{source} names the loss '{kind}', which does not exist: {suggestion(kind, LOSSES)}")
    reason = error["msg"][:1].lower() + error["msg"][1:]
    example = f"change it, for example with {dotted}=VALUE."
    return ConfigError(f"{source} sets {dotted} to {found!r}, but {reason}; {example}")


def _setter(location: Sequence[str], parts: Mapping[str, Any]) -> str:
    """The last part of a joined recipe that sets a value."""
    setters = [part for part, settings in parts.items() if _sets(settings, location)]
    return setters[-1] if setters else "+".join(parts)


def _sets(settings: Any, location: Sequence[str]) -> bool:
    for key in location:
        if not isinstance(settings, dict):
            return True
        if key not in settings:
            return False
        settings = settings[key]
    return True


def _keys_at(location: Sequence[str], settings: Mapping[str, Any]) -> list[str]:
    """The keys of the section at a location."""
    model: type[BaseModel] = RunConfig
    for part in location:
        if part.isdecimal():
            # The number of an entry in a list of sections.
            continue
        annotation = model.model_fields[part].annotation
        kinds = [kind for kind in (annotation, *get_args(annotation)) if isinstance(kind, type)]
        sections = [kind for kind in kinds if issubclass(kind, BaseModel)]
        model = LOSSES[settings["algorithm"]["kind"]] if part == "algorithm" else sections[0]
    return list(model.model_fields)
