"""Checks that model and reward accept the run's prompts, and that the reward scores."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

import numpy as np

from spotlight.compute.data.prompt_rows import PromptSet
from spotlight.compute.models.encoder_process import problems_with
from spotlight.compute.rewards.config import Term
from spotlight.compute.rewards.protocol import Image
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.rewards.tracebacks import named_tracebacks
from spotlight.core.errors import PromptError, RewardUnavailable
from spotlight.core.types import Prompt, Size
from spotlight.preflight.planned_run import PlannedRun

SPELT_OUT, NAMED = 3, 10
"""Number of bad prompts reported in full, and number reported with at least their place."""
SCORED = 3
"""Prompts of each set for which a picture is scored."""


def check_prompts(subject: PlannedRun) -> Iterator[str]:
    """The model's text encoder accepts every prompt."""
    both = (subject.training, subject.held_out)
    # One call for both sets, because each starts a process that imports torch.
    problems = iter(_encoder_problems(subject, [prompt for prompts in both for prompt in prompts.prompts]))
    for prompts in both:
        _refuse(prompts, list(islice(problems, len(prompts.prompts))), f"the model {subject.facts.family}")
        if prompts.repeated:
            yield (
                f"{prompts.repeated} of the {len(prompts.prompts)} prompts of {prompts.source} repeat an earlier one, "
                "so these are drawn more often than the others."
            )
    count = subject.config.eval.prompts
    shared = subject.prompts.shared(count)
    if shared:
        evaluated = len(set(subject.prompts.evaluated(count)))
        yield (
            f"{len(shared)} of the {evaluated} held-out prompts are also trained on, so held-out scores say less "
            "about new prompts; name others with data.held_out."
        )


def _encoder_problems(subject: PlannedRun, prompts: Sequence[Prompt]) -> list[str | None]:
    """The text encoder's problem with each prompt."""
    world = subject.facts.world
    if world is None:
        return problems_with(subject.config.model, [prompt.text for prompt in prompts])

    def problem_with(prompt: Prompt) -> str | None:
        try:
            world.vocabulary.token_ids(prompt)
        except PromptError as error:
            return str(error)
        return None

    return list(map(problem_with, prompts))


def check_prompts_and_reward(subject: PlannedRun) -> Iterator[str]:
    """Every reward can be loaded with its options, accepts every prompt, and gives finite scores for the first ones; so
    does the second judge for held-out prompts."""
    size, both = subject.facts.size(subject.config.data.size), (subject.training, subject.held_out)
    judges = []
    for number, term in enumerate(subject.rewards):
        with named_tracebacks(), RewardPool(min(1, term.processes), term.timeout_s) as pool:
            judges.append(f"reward {_loaded(pool, term, both)}")
            try:
                _score(pool, term, both, size)
            except RewardUnavailable as error:
                yield (
                    f"the reward '{term.name}' cannot score now: {str(error).rstrip('.')}; a run starts all the same, "
                    "and its pictures wait until the reward can."
                )
            if subject.judge is not None and not number:
                judge = Term(name=subject.judge)
                judges.append(f"judge {_loaded(pool, judge, (subject.held_out,))}")
                _score(pool, judge, (subject.held_out,), size)
    yield (
        f"checked: {len(subject.training.prompts)} training and {len(subject.held_out.prompts)} held-out prompts, "
        f"{', '.join(judges)}."
    )


def _loaded(pool: RewardPool, term: Term, sets: Sequence[PromptSet]) -> str:
    """Load one reward and check the prompts with it; return its name and version."""
    version = pool.version(term)
    for prompts in sets:
        problems = pool.problems_with(term, prompts.prompts)
        _refuse(prompts, problems or [], f"the reward '{term.name}'")
    return f"{term.identity} ({version})"


def _score(pool: RewardPool, term: Term, sets: Sequence[PromptSet], size: Size) -> None:
    """Let one reward score pictures of noise for the first prompts."""
    first = list(dict.fromkeys(prompt for prompts in sets for prompt in prompts.prompts[:SCORED]))
    pool.score(term, [noise_picture(size)] * len(first), first)


def noise_picture(size: Size) -> Image:
    """Random pixels; not a blank picture, because some rewards divide by the contrast."""
    return np.random.default_rng(0).integers(0, 256, (size.height, size.width, 3), dtype=np.uint8)


def _refuse(prompts: PromptSet, problems: list[str | None], by: str) -> None:
    """Raise one PromptError for all bad prompts: the first ones in full, further ones by place, then a count."""
    bad = [(index, problem) for index, problem in enumerate(problems) if problem]
    if not bad:
        return
    place: Callable[[int], str] = prompts.place
    problems_shown = [f"{place(index)}: {str(problem).rstrip('.')}" for index, problem in bad[:SPELT_OUT]]
    further = [place(index) for index, _ in bad[SPELT_OUT:NAMED]]
    if len(bad) > NAMED:
        further.append(f"{len(bad) - NAMED} more")
    if further:
        problems_shown.append(f"the same kind of problem at {', '.join(further)}")
    raise PromptError(
        f"{len(bad)} of the {len(prompts.prompts)} prompts of {prompts.source} cannot be used by {by}: "
        f"{'; '.join(problems_shown)}."
    )
