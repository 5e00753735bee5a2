"""Common parts of `sim`, `plan` and `compare`: recipe, profile, trace and numerics of a simulation."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from spotlight.compute.rewards.config import weights_of
from spotlight.config import RunConfig, load_config
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.core.errors import InputError, suggestion
from spotlight.folder import RunFolder
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.numerics import Numerics
from spotlight.sim.simulate import Simulation, SimulationEnd, check, simulate, simulated

if TYPE_CHECKING:
    from spotlight.sim.memory import Memory


class NumericsKind(StrEnum):
    """Source of the numbers of a simulated run."""

    MODEL = "model"
    """Rewards are drawn from a statistical model that was fitted to a real run."""
    REAL = "real"
    """The recipe's own tiny model draws, is judged and trains, in this process."""

    @classmethod
    def named(cls, name: str) -> "NumericsKind":
        if name not in list(cls):
            raise InputError(f"there are no numerics '{name}': {suggestion(name, list(cls))}")
        return cls(name)

    @property
    def label(self) -> str:
        return "co-simulated" if self is NumericsKind.REAL else "simulated with drawn rewards"


@dataclass(frozen=True, kw_only=True)
class Assumed:
    """The machines and prices of a simulated run."""

    profile: Profile
    prices: PriceTable
    trace: str | None = None


def simulated_config(recipe: str, overrides: Sequence[str], assumed: Assumed) -> RunConfig:
    """The recipe on these machines; refuses machines without a price or a duration."""
    trace = [] if assumed.trace is None else [f"market.trace={assumed.trace}"]
    config = load_config(recipe, [*overrides, *trace])
    assumed.prices.require(config.market.billed_by(config.cluster.spot))
    check(config, assumed.profile, recipe)
    return simulated(config, assumed.profile)


def own_fit(config: RunConfig) -> str:
    """Name of the fit of the recipe's model and loss; such a fit may not ship."""
    return f"{config.model.name}-{config.algorithm.kind.replace('_', '-')}"


def model_numerics(config: RunConfig, learning: str | None) -> ModelNumerics:
    """Numerics by the name of a fit; default the recipe's own."""
    model = LearningModel.load(learning or own_fit(config))
    return ModelNumerics(model, config.seed, config.rollout.steps, tuple(weights_of(config.reward.rewards(""))))


@dataclass(frozen=True, kw_only=True)
class SimulationOrder:
    """A recipe to simulate."""

    recipe: str
    overrides: Sequence[str]
    assumed: Assumed
    kind: NumericsKind
    learning: str | None = None
    remember: Path | None = None


def simulate_recipe(order: SimulationOrder, progress: Callable[[str, int, int], None]) -> SimulationEnd:
    """Simulate a recipe in a new run folder; refuses it before the folder is made."""
    config = simulated_config(order.recipe, order.overrides, order.assumed)
    with numerics_for(order.kind, config, order.learning, order.remember) as numbers:
        folder = RunFolder.create(config.output, f"sim-{order.recipe.replace('/', '-')}")
        simulation = Simulation(
            config=config,
            recipe=order.recipe,
            profile=order.assumed.profile,
            numerics=numbers,
            prices=order.assumed.prices,
            progress=lambda done: progress("iterations", done, config.iterations),
        )
        return simulate(simulation, folder)


@contextmanager
def real_numerics(config: RunConfig, memory: "Memory") -> Iterator[Numerics]:
    from spotlight.compute.rewards.in_process import scorer
    from spotlight.compute.rewards.registry import importing_from
    from spotlight.sim.real import RealNumerics

    with importing_from(config.reward.folder), scorer(config.reward, config.model.device) as judge:
        yield RealNumerics(config, judge, memory)


@contextmanager
def numerics_for(
    kind: NumericsKind, config: RunConfig, learning: str | None = None, remembered: Path | None = None
) -> Iterator[Numerics]:
    """Numerics of a kind; `remembered` is a cache file of computed numbers, extended by this run."""
    if kind is NumericsKind.MODEL:
        if remembered is not None:
            raise InputError(
                f"numbers that are drawn from a fit are not kept in {remembered}; leave it out, or use real numerics."
            )
        yield model_numerics(config, learning)
        return
    if learning is not None:
        raise InputError(f"the fit '{learning}' has no effect on real numerics; leave it out, or use model numerics.")
    from spotlight.sim.memory import Memory, subject_of

    subject = subject_of(config)
    memory = Memory.load(remembered, subject) if remembered else Memory(subject=subject)
    try:
        with real_numerics(config, memory) as numerics:
            yield numerics
    finally:
        if remembered:
            memory.save(remembered)
