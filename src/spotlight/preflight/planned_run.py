"""The subject of the checks: a run before its start or resume, with its prompts."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from spotlight.compute.data.prompt_rows import PromptSet
from spotlight.compute.data.prompts import RunPrompts, prompt_sets
from spotlight.compute.models.catalogue import ModelFacts, facts_of
from spotlight.compute.rewards.config import Term
from spotlight.config import RunConfig
from spotlight.folder import RunFolder


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A run before its processes start."""

    config: RunConfig
    facts: ModelFacts
    folder: RunFolder
    """For a new run the folder does not exist yet."""
    training: PromptSet
    held_out: PromptSet

    @classmethod
    def new(cls, config: RunConfig, recipe: str) -> "PlannedRun":
        facts = facts_of(config.model.name)
        training, held_out = prompt_sets(config.data, facts.world)
        return cls(
            config=config,
            facts=facts,
            folder=RunFolder.planned(config.output, recipe),
            training=training,
            held_out=held_out,
        )

    @classmethod
    def resumed(cls, config: RunConfig, folder: RunFolder) -> "PlannedRun":
        """A run to be resumed, with its stored prompts."""
        kept, source = folder.read_prompts(), str(folder.prompts)
        return cls(
            config=config,
            facts=facts_of(config.model.name),
            folder=folder,
            training=PromptSet(source=source, prompts=kept.training),
            held_out=PromptSet(source=source, prompts=kept.held_out),
        )

    @property
    def prompts(self) -> RunPrompts:
        return RunPrompts.of(self.training, self.held_out)

    @property
    def rewards(self) -> tuple[Term, ...]:
        return self.config.rewards(self.facts)

    @property
    def judge(self) -> str | None:
        """The second judge of held-out pictures."""
        second = self.config.second_judge(self.facts.judge)
        return second.name if second is not None else None


class Check(NamedTuple):
    """One check of a planned run."""

    label: str
    run: Callable[[PlannedRun], Iterator[str]]
    """Raises if the check fails; yields remarks for the user."""
