"""A statistical model of learning: rewards drawn from a few figures that were fitted to a real run.

The mean reward m rises with progress p from `base` to `limit`: m(p) = limit - (limit - base) exp(-rate p). A sample's
reward is m plus a part of its prompt (`prompt_std`) and a part of its seed (`seed_std`). Both spreads shrink with
sqrt(m (1 - m)), as a bounded reward's do near its bound. A preview has the seed's part with correlation rho, lower for
fewer steps, older weights and fp8, higher for second-order steps. An iteration's progress is the mean variance of its
groups, divided by that of unselected groups at the same progress: groups of twice the variance are worth two
iterations. Measured: 2.7 times fewer iterations at 2.5 times the variance on words, 1.6 at 1.8 on scenes
(docs/results/explore.json). Real curves begin slower, because averaged weights lag behind, and every version lies off
the curve: a fit may have both (`lag`, `noise`). Held-out rewards come in pairs about m, whose mean the fit is of.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec
import numpy as np

from spotlight.assets import asset
from spotlight.control.explore.config import Precision
from spotlight.core import messages as m
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.rng import Purpose, derive_key
from spotlight.core.types import Sample, SamplerKind
from spotlight.core.work import Request, RequestId, Work
from spotlight.sim.numerics import Issued, TrainedState

SCORER = "learning-model"
_MASK = (1 << 53) - 1
ROLLOUT = Work.ROLLOUT
PROMPTS_KEPT = 1 << 14
"""Prompts whose draws are cached, because all samples of a prompt use them; a sample's own draw is used once."""


class LearningModel(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Learning figures of one recipe, with their source."""

    name: str
    source: str
    base: float
    limit: float
    rate: float
    """-log(1 - share), where share is the part of the gap to the limit that one unselected iteration closes."""
    prompt_std: float
    seed_std: float
    """Standard deviation within a group, at the base."""
    fidelity: Mapping[int, float]
    """Correlation of a preview's reward with the exact one within a prompt, by Euler steps."""
    second_order: Mapping[int, float] = {}
    """The same by second-order steps (`explore.solver` ode2); empty: as Euler steps."""
    fp8: float = 1.0
    """Correlation of a preview in fp8 over that of an exact one."""
    lag: float = 0.0
    """Progress by which the weights lag behind training after a while: the mean age of an average."""
    noise: float = 0.0
    """Standard deviation of a version's mean reward about the curve; the base lies on it."""

    @classmethod
    def load(cls, name_or_path: str) -> "LearningModel":
        """Load a shipped fit by name, or a JSON file with the same fields by path."""
        known = learning_names()
        path = asset(f"learning/{name_or_path}.json") if name_or_path in known else Path(name_or_path)
        if not path.is_file():
            raise ConfigError(
                f"there is no learning model '{name_or_path}', neither shipped nor as a file: "
                f"{suggestion(name_or_path, known)}"
            )
        try:
            model = msgspec.json.decode(path.read_bytes(), type=cls)
        except msgspec.DecodeError as error:
            raise ConfigError(
                f"the learning model '{name_or_path}' cannot be read ({error}); it needs the fields of the shipped "
                f"ones, such as '{known[0]}'."
            ) from error
        model.check()
        return model

    def check(self) -> None:
        """Refuse figures that give unbounded rewards or impossible correlations."""
        correlations = sorted(self.fidelity.items())
        every = [*correlations, *sorted(self.second_order.items())]
        wrong = next(
            (
                problem
                for problem, is_wrong in (
                    (f"base {self.base} is not between 0 and 1", not 0 < self.base < 1),
                    (f"limit {self.limit} is not between base {self.base} and 1", not self.base <= self.limit <= 1),
                    (f"rate {self.rate} is not above 0", not self.rate > 0),
                    (f"prompt_std {self.prompt_std} is below 0", not self.prompt_std >= 0),
                    (f"seed_std {self.seed_std} is not above 0", not self.seed_std > 0),
                    (f"lag {self.lag} is below 0", not self.lag >= 0),
                    (f"noise {self.noise} is below 0", not self.noise >= 0),
                    ("fidelity is empty", not correlations),
                    (
                        f"fidelity {dict(correlations)} or second_order {dict(every[len(correlations) :])} has a "
                        "correlation outside 0 to 1",
                        any(not 0 <= rho <= 1 for _, rho in every),
                    ),
                    (f"fp8 {self.fp8} is not between 0 and 1", not 0 <= self.fp8 <= 1),
                )
                if is_wrong
            ),
            None,
        )
        if wrong:
            raise ConfigError(
                f"the learning model '{self.name}' is impossible: {wrong}; correct that figure, "
                "or fit the model again with `python -m benchmarks.learning_fit`."
            )

    def mean(self, progress: float) -> float:
        return self.limit - (self.limit - self.base) * math.exp(-self.rate * self.reached(progress))

    def reached(self, progress: float) -> float:
        """Progress of weights that lag."""
        return progress + self.lag * math.expm1(-progress / self.lag) if self.lag else progress

    def spread(self, progress: float) -> float:
        """Standard deviation of rewards, relative to that at the base."""
        now, then = self.mean(progress), self.base
        return math.sqrt(max(0.0, now * (1 - now)) / (then * (1 - then)))

    def rho(self, steps: int, full_steps: int, solver: SamplerKind = SamplerKind.ODE) -> float:
        """Correlation by steps, linear between the fitted counts; 1 at `full_steps` unless the fit has a value."""
        fitted = self.second_order if self.second_order and solver is SamplerKind.ODE2 else self.fidelity
        known = {full_steps: 1.0} | {count: rho for count, rho in self.fidelity.items() if count == full_steps}
        known |= {count: rho for count, rho in fitted.items() if count <= full_steps}
        counts = sorted(known)
        return float(np.interp(steps, counts, [known[count] for count in counts]))


def learning_names() -> list[str]:
    """Names of the shipped fits."""
    return sorted(path.stem for path in asset("learning").glob("*.json"))


class ModelNumerics:
    """Random draws instead of pictures; microseconds per sample."""

    counts_bits = False

    def __init__(self, model: LearningModel, run_seed: int, full_steps: int, rewards: Sequence[str] = ()) -> None:
        """Each of several `rewards` scores what the model draws, as their sum does: the fit is of one reward."""
        self._rewards = rewards
        self._model = model
        self._run_seed = run_seed
        self._full_steps = full_steps
        self._rounded = 1.0
        """Correlation of this run's previews over that of exact ones."""
        self._progress: dict[str, float] = {"base": 0.0}
        """Progress by weights digest."""
        self._off: dict[str, float] = {"base": 0.0}
        """Distance of the mean reward from the curve, by weights digest."""
        self._levels: dict[float, tuple[float, float]] = {}
        """Mean and spread of rewards by progress."""
        self._gains: list[float] = []
        """Progress of each group that this iteration's updates have used."""
        self._scored: dict[RequestId, tuple[str, float]] = {}
        """Weights digest and reward of rollouts that are not trained on yet; training needs the reward again."""

    def begin_run(self, issued: Issued, previews: Precision) -> None:
        self._rounded = self._model.fp8 if previews is Precision.FP8 else 1.0
        self._gains.clear()
        self._scored.clear()

    def first_latent(self, sample: Sample) -> str:
        return ""

    def next_latent(self, latent: str, step: int, weights_digest: str) -> str:
        return ""

    def latent_at(self, sample: Sample, step: int, weights_digest: str) -> str:
        return ""

    def tensors(self, request: Request, weights_digest: str, salt: str) -> bytes:
        return f"{weights_digest}/{request.id}".encode()

    def score(self, request: Request, weights_digest: str) -> m.Score:
        reward = self._reward(request, weights_digest)
        if request.work is ROLLOUT:
            self._scored[request.id] = (weights_digest, reward)
        return m.Score(reward, dict.fromkeys(self._rewards, reward), SCORER)

    def _reward_again(self, request: Request, weights_digest: str) -> float:
        digest, reward = self._scored.pop(request.id, ("", 0.0))
        return reward if digest == weights_digest else self._reward(request, weights_digest)

    def _reward(self, request: Request, weights_digest: str) -> float:
        model, sample, progress = self._model, request.sample, self._progress[weights_digest]
        level = self._levels.get(progress)
        if level is None:
            level = self._levels[progress] = (model.mean(progress), model.spread(progress))
        mean = level[0] + self._off[weights_digest]
        if request.work is Work.EVALUATION:
            side = 1 if sample.seed % 2 else -1
            pair = _drawn(self._run_seed, "held out", sample.seed // 2)
            return mean + side * level[1] * math.hypot(model.prompt_std, model.seed_std) * pair
        prompt_part = _prompt_part(self._run_seed, sample.prompt)
        exact_part = _drawn(self._run_seed, "seed", sample.prompt, sample.start)
        rho = 1.0
        if request.work is Work.PREVIEW:
            rho = self._rounded * model.rho(sample.sampling.steps, self._full_steps, sample.sampling.sampler)
        seed_part = exact_part
        if rho < 1.0:
            other = _drawn(self._run_seed, "steps", sample.prompt, sample.start, sample.sampling.steps)
            seed_part = rho * exact_part + math.sqrt(1 - rho * rho) * other
        return mean + level[1] * (model.prompt_std * prompt_part + model.seed_std * seed_part)

    def trained(self, before: TrainedState, order: m.Train, after: TrainedState) -> Mapping[str, float]:
        """The last update of an iteration adds the mean progress of the iteration's groups."""
        progress = self._progress[before.behaviour]
        groups: dict[int, list[float]] = {}
        for item in order.items:
            if item.kept:
                reward = self._reward_again(item.request, before.drew(item.request.sample, order.iteration))
                groups.setdefault(item.request.group, []).append(reward)
        plain = (self._model.seed_std * self._model.spread(progress)) ** 2
        # The unbiased variance (ddof=1): otherwise an unselected iteration of small groups would be worth less than 1.
        self._gains += [
            float(np.var(rewards, ddof=1)) / plain if plain and len(rewards) > 1 else 0.0 for rewards in groups.values()
        ]
        if order.last:
            progress += float(np.mean(self._gains)) if self._gains else 0.0
            self._gains = []
        off = self._model.noise * _drawn(self._run_seed, "version", self._model.name, after.steps)
        for digest in (after.behaviour, after.average):
            self._progress.setdefault(digest, progress)
            self._off.setdefault(digest, off)
        return {"progress": progress}


@lru_cache(maxsize=PROMPTS_KEPT)
def _prompt_part(run_seed: int, prompt: str) -> float:
    return _drawn(run_seed, "prompt", prompt)


def _drawn(run_seed: int, *identity: str | int) -> float:
    """A normal draw by Box-Muller from the identity's key; a generator per number would cost ten times as much."""
    key = derive_key(Purpose.DATA, run_seed, *identity)
    radius = ((key & _MASK) + 1) / (_MASK + 1)
    return math.sqrt(-2 * math.log(radius)) * math.cos(2 * math.pi * (key >> 64 & _MASK) / (_MASK + 1))
