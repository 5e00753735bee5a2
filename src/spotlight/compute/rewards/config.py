"""Section `reward` of a recipe; free of torch."""

import json
from collections import Counter
from collections.abc import Mapping
from typing import Self, TypeAlias

import msgspec
from pydantic import Field, model_validator

from spotlight.compute.rewards.protocol import JUDGE, TOTAL
from spotlight.control.advantage import Combine
from spotlight.core.errors import ConfigError
from spotlight.core.section import Section

TIMEOUT_S = 300.0
PROCESSES = 2
BATCH = 16
"""Pictures per batch: the fastest size of the reading model, and small enough to spread a burst over the processes."""
SECRETS = ("key", "token", "secret", "password")
"""Last words of option names that hold secrets."""

Option: TypeAlias = bool | int | float | str
Options: TypeAlias = dict[str, Option]


class SecondJudge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second judge of held-out pictures, whose scores are not trained on, so that reward hacking shows."""

    name: str
    every: int
    """Iterations between evaluations that it scores."""
    last: int
    """Iteration of the run's last evaluation, which it also scores."""

    def is_due(self, iteration: int) -> bool:
        return iteration % self.every == 0 or iteration == self.last


class Term(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One reward of a run, with the settings of its processes on every node."""

    name: str
    key: str = ""
    """Name of its raw score among a score's components; empty for a run's only reward, which is the total itself."""
    weight: float = 1.0
    options: Options = {}
    processes: int = PROCESSES
    timeout_s: float = TIMEOUT_S
    device: str = "cpu"
    batch: int = BATCH

    @property
    def identity(self) -> str:
        """The name with the options, sorted: equal for equal rewards."""
        given = ", ".join(f"{name}={json.dumps(value)}" for name, value in sorted(self.options.items()))
        return f"{self.name}({given})" if given else self.name

    def recorded(self, version: str) -> str:
        """What is recorded with a score: reward, options and version, and the weight of one among several."""
        weight = f"{self.weight:g} " if self.key else ""
        return f"{weight}{self.identity} {version}"


class TermConfig(Section):
    """One of several rewards."""

    name: str
    """A reward's name or package.module:function."""
    weight: float = 1.0
    """Factor of its score in the sum, or of its advantages (`reward.combine`); 0 only reports it."""
    options: Options = Field(default={})
    """Keyword arguments of its factory or function. They are recorded with the run, so a secret is never an option:
    name an environment variable instead."""
    processes: int = Field(default=PROCESSES, ge=1)
    """Reward processes per node, one thread each."""
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    """Seconds without a reply after which one of its processes is killed as hung."""
    device: str = "cpu"
    """Device that it computes on, as in torch."""
    batch: int = Field(default=BATCH, ge=1)
    """Largest number of pictures that it scores in one call."""


class RewardConfig(Section):
    """The rewards, the second judge of held-out pictures, and the reward processes."""

    name: str | None = None
    """A reward's name or package.module:function (docs/data_and_rewards.md); None uses the family's own."""
    options: Options = Field(default={})
    """Keyword arguments of its factory or function, without secrets, as those of a term."""
    terms: tuple[TermConfig, ...] = ()
    """Several rewards, each with its own weight, options and processes, instead of `name`."""
    combine: Combine = Combine.SUM
    """How several rewards make one advantage."""
    folder: str | None = None
    """Folder that package.module:function is imported from, beside the installed packages; None uses the working
    folder. The run records it. `resume` from another working folder must name it again, because a run folder must not
    decide which code runs."""
    judge: str | None = None
    """A second judge, named likewise, whose score of held-out pictures is reported and never trained on
    (`eval.judge_every`). None uses the family's own if the reward is the family's own, else no judge."""
    processes: int = Field(default=PROCESSES, ge=0)
    """Reward processes of a single reward, one thread each. 0 scores in the sampling process, on its device; only
    programs of one process do that: the learning benchmarks and the simulator."""
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    """Seconds without a reply after which a reward process is killed as hung, including the time to load the reward or
    to wait for a remote one."""

    @model_validator(mode="after")
    def _is_one_or_several(self) -> Self:
        both = [key for key in ("name", "options") if getattr(self, key)]
        if self.terms and both:
            raise ConfigError(
                f"reward.{both[0]} and reward.terms are both set, but a run has either one reward or a list of them; "
                f"move reward.{both[0]} into the list, or leave out one of the two."
            )
        if self.terms and not any(term.weight for term in self.terms):
            raise ConfigError(
                f"all {len(self.terms)} weights of reward.terms are 0, so nothing would be trained on; set one of them."
            )
        if self.combine is not Combine.SUM and not self.terms:
            raise ConfigError(
                f"reward.combine is {self.combine.value} but reward.terms is empty, and one reward has nothing to be "
                "combined with; name several in reward.terms, or leave out reward.combine."
            )
        return self

    @model_validator(mode="after")
    def _options_are_no_secrets(self) -> Self:
        for options in (self.options, *(term.options for term in self.terms)):
            for name in options:
                if name.rpartition("_")[2].lower() in SECRETS:
                    raise ConfigError(
                        f"the option '{name}' of a reward looks like a secret, and options are written to the run's "
                        "folder and its journal; put the secret into an environment variable and let the reward read "
                        "that."
                    )
        return self

    @property
    def names(self) -> list[str]:
        """Names of all rewards that are set, the second judge included."""
        given = [self.name, *(term.name for term in self.terms), self.judge]
        return [name for name in given if name is not None]

    @property
    def is_family_own(self) -> bool:
        """Whether no reward is set."""
        return self.name is None and not self.terms

    def rewards(self, family_reward: str) -> tuple[Term, ...]:
        """The run's rewards; the n-th of a name has the key `name#n`."""
        if not self.terms:
            name = self.name or family_reward
            return (Term(name=name, options=self.options, processes=self.processes, timeout_s=self.timeout_s),)
        seen = Counter((TOTAL, JUDGE))
        terms = []
        for term in self.terms:
            seen[term.name] += 1
            key = term.name if seen[term.name] == 1 else f"{term.name}#{seen[term.name]}"
            terms.append(Term(key=key, **term.model_dump()))
        return tuple(terms)

    def only_reward(self, family_reward: str) -> Term:
        """The run's reward, for programs that score with one."""
        if self.terms:
            raise ConfigError(
                f"reward.terms has {len(self.terms)} rewards, but this program scores with one; set reward.name."
            )
        return self.rewards(family_reward)[0]


def weights_of(terms: tuple[Term, ...]) -> Mapping[str, float]:
    """Weight of each term by its key; empty for a run's only reward."""
    return {term.key: term.weight for term in terms if term.key}
