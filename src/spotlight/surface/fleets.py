"""Forecasts of a run on several fleets, and the profile that a model is forecast with."""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol

from spotlight.compute.models.catalogue import facts_of
from spotlight.config import RunConfig
from spotlight.control.profiles import Profile, profile_names
from spotlight.core.errors import ConfigError
from spotlight.sim.simulate import check
from spotlight.surface.planning import Forecast, forecast, seconds_with, short_run, simulated_iterations
from spotlight.surface.simulating import Assumed

SPOT_COUNTS = (0, 4, 8)
"""Numbers of spot nodes to compare if none are named and the recipe has none."""
OWN_PROFILES = {"words": "cpu-words"}
"""Profiles of models by name."""
GPU_PROFILES = {"qwen-image": ("h200-qwen-image-512", "h200-qwen-image-1280")}
"""Profiles of real families on a GPU; that of the nearest size is taken."""


class Report(Protocol):
    """Receives a stage, what is done of it, and its total."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def usual_counts(config: RunConfig) -> list[int]:
    """0, the recipe's own number and twice that, as far as the recipe can run with them."""
    own, possible = config.cluster.spot, []
    for count in (0, own, 2 * own) if own else SPOT_COUNTS:
        with suppress(ConfigError):
            short_run(config, count)
            possible.append(count)
    return possible


def own_profile(config: RunConfig) -> str | None:
    """Name of the shipped profile of this model on this device."""
    if config.model.name in OWN_PROFILES or not config.model.is_on_gpu:
        return OWN_PROFILES.get(config.model.name)
    facts = facts_of(config.model.name)
    size = facts.size(config.data.size)
    fitting = {name: Profile.load(name) for name in GPU_PROFILES.get(facts.family, ())}
    pixels = size.height * size.width
    nearest = sorted(fitting, key=lambda name: abs(fitting[name].width * fitting[name].height - pixels))
    return nearest[0] if nearest else None


def profile_of(config: RunConfig, name: str | None) -> Profile:
    """The named profile, else the model's own."""
    model = config.model.name
    chosen = name or own_profile(config)
    if chosen is None:
        raise ConfigError(
            f"no profile of the model '{model}' ships, so the seconds of its steps are not known; name the hardware to "
            f"pretend with --profile ({', '.join(profile_names())}), or measure it with `spotlight profile`."
        )
    return Profile.load(chosen)


def forecasts_of(
    config: RunConfig, recipe: str, assumed: Assumed, counts: Sequence[int], report: Report
) -> list[Forecast]:
    """One forecast per number of spot nodes; missing durations and prices are refused before any simulation."""
    check(config, assumed.profile, recipe)
    assumed.prices.require(config.market.billed_by(max(counts), config.cluster.fleet))
    total = simulated_iterations(config)
    return [
        forecast(config, recipe, count, assumed, partial(report, f"spot nodes: {count}", total=total))
        for count in counts
    ]


def seconds_by_presence(
    config: RunConfig, recipe: str, assumed: Assumed, counts: Sequence[int], report: Report
) -> dict[int, float]:
    """Seconds per iteration while these numbers of the run's spot nodes are there."""
    total = simulated_iterations(config)
    return {
        count: seconds_with(config, recipe, count, assumed, partial(report, f"present nodes: {count}", total=total))
        for count in counts
    }
