"""The setups of the headline and the settings that each task runs them with."""

from pathlib import Path
from typing import NamedTuple


class Task(NamedTuple):
    """A recipe, and the settings of its setups."""

    recipe: str
    common: tuple[str, ...]
    """Settings of all setups."""
    exploring: tuple[str, ...]
    """Settings of setups that explore, which may end once they have passed the others."""
    batches: tuple[str, ...]
    """Batches of setups that explore, unless --same-batches is given: selected seeds differ more, so fewer suffice, and
    more timesteps of each learn as much. Without previews such batches level off lower. With fewer prompts per
    iteration, fewer iterations are evaluated. Plans of previews are those of benchmarks/plans/."""


BASELINE = "reserved-only"
PROFILES = ("h200-qwen-image-512", "h200-qwen-image-1280")
SETUPS = (
    *("reserved-only", "spot-no-explore", "on-demand", "on-demand-all", "pipelined"),
    *("explore-inline", "spotlight-fixed", "spotlight", "spotlight-pipelined"),
    *("reserved-explore", "on-demand-explore", "spotlight-fixed-fallback", "spotlight-fallback"),
)
WITHOUT_SPOT = ("reserved-only", "on-demand", "on-demand-all", "reserved-explore", "on-demand-explore")
EXPLORING = (
    *("explore-inline", "spotlight-fixed", "spotlight", "spotlight-pipelined"),
    *("reserved-explore", "on-demand-explore", "spotlight-fixed-fallback", "spotlight-fallback"),
)
WITH_ONE_CURVE = (*WITHOUT_SPOT, "spot-no-explore", "explore-inline", "spotlight-fixed")
"""Setups that learn the same on all machines."""
FALLBACK = "-fallback"
"""Suffix of a setup that rents stand-ins for missing spot machines."""
FALLBACK_SETTINGS = ("market.fallback_s=300",)
MARKET = ("market.notice_s=30", "market.boot_s=120")
"""GCP's notice and a boot of two minutes, which traces of counts do not have."""
COMMON = (
    *("rollout.group_size=4", "algorithm.timesteps_per_sample=2", "eval.every=5", "output.checkpoint_every=20"),
    "pipeline.gap=true",
)
"""GAP changes no score: it shortens the iterations of setups in which other slots roll out than those that train."""
PREVIEWS = ("explore.solver=ode2", "explore.audit_share=0.005")
"""A fixed plan needs no audits; a few show how well its previews rank."""
LESS_LAG = (
    *("train.ema_decay=0.92", "train.lr=7e-5", "algorithm.old_decay=0.5"),
    *("algorithm.kl_weight=0.1", "algorithm.advantage_clip=1.0"),
)
"""The recipe of `scenes` is made for groups of 24 and 230 iterations. With groups of 4, faster averages and steps learn
quicker: with a rate of 7e-5 `reserved-only` takes 1.2 times less time to its own score than with the recipe's 5e-5
(seeds 200 to 203 and 210 to 212). Without the KL term, with an average over 0.97, with a clip of 3, with 8 updates, or
with 24 prompts and 4 timesteps it is not quicker."""
TASKS = {
    "words-large": Task(
        "words-large-nft",
        common=("iterations=80", *COMMON),
        exploring=("iterations=35", *PREVIEWS, "explore.seeds=24", "explore.steps=3"),
        batches=(
            *("iterations=120", "rollout.prompts=10", "algorithm.timesteps_per_sample=4", "train.ema_decay=0.95"),
            *("explore.seeds=16", "explore.steps=6", "explore.candidates=2", "explore.scouts=4"),
            *("explore.precision=fp8", "eval.every=10"),
        ),
    ),
    "scenes": Task(
        "scenes-nft",
        common=("iterations=80", "model.compile=false", *LESS_LAG, *COMMON),
        exploring=("iterations=50", *PREVIEWS, "explore.seeds=24", "explore.steps=4"),
        batches=(
            *("iterations=120", "rollout.prompts=16", "algorithm.timesteps_per_sample=4", "algorithm.kl_weight=0"),
            *("train.lr=5e-5", "train.ema_decay=0.99", "explore.seeds=24", "explore.steps=5"),
            *("explore.precision=fp8", "eval.every=10"),
        ),
    ),
}
"""Tasks by family. Groups are those with which `reserved-only` is quickest, not the recipes' own, which are larger."""
FIXED = ("deterministic=true", "pipeline.least_groups=8")
"""Half of all groups are stale, independent of the clock, and parts have 8 groups."""
SAME_FOR_ALL = {
    "spotlight-fixed": ("explore.overrun=10",),
    "on-demand-explore": ("explore.overrun=10",),
    "spotlight": ("explore.candidates=1", "explore.scouts=0"),
    "spotlight-pipelined": ("explore.plan=fixed", *FIXED),
    "pipelined": FIXED,
}
"""Fixed plans are always awaited, so that the clock depends on machines and the learning does not; the bandit plans for
the available time, and for the prompts that are rolled out."""
STEADY = "steady"
"""The trace of setups that have no spot machines, and of spot machines that are never lost."""


FITS = Path(__file__).parent / "fits"
"""Learning models in these settings, with and without exploration (benchmarks/learning_fit/)."""
FITTED = tuple(range(34, 42))
"""Seeds whose real curves were fitted, one by one and together."""


def fitted_seed(seed: int) -> int:
    """The real seed whose fit a modelled seed draws from: seeds differ by more than the noise of one curve."""
    return FITTED[(seed - FITTED[0]) % len(FITTED)]


def fit_of(family: str, setup: str, seed: int | None = None) -> Path:
    """The learning model that modelled numbers of a setup are drawn from; without a seed that of all seeds."""
    kind = "exploring" if setup in EXPLORING else "plain"
    return FITS / f"{family}-{kind}{'' if seed is None else f'-{fitted_seed(seed)}'}.json"


def recipe_of(setup: str) -> str:
    """The recipe of a setup: that of the setup without its fallback."""
    return setup.removesuffix(FALLBACK)


def changes_of(setup: str) -> tuple[str, ...]:
    """Settings of a setup in every task."""
    return (*SAME_FOR_ALL.get(recipe_of(setup), ()), *(FALLBACK_SETTINGS if setup.endswith(FALLBACK) else ()))
