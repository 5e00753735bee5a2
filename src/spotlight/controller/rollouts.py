"""The exact samples of an iteration: issued by identity, awaited, compared within their groups."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from spotlight.compute.data.order import PromptOrder
from spotlight.compute.rollout.config import InitialNoise, RolloutConfig
from spotlight.compute.train.config import AdvantageConfig
from spotlight.control.advantage import (
    Combine,
    GroupAdvantages,
    StdMode,
    comparable_groups,
    decoupled_advantages,
    group_advantages,
)
from spotlight.control.constant_rewards import alarm, constant_rewards
from spotlight.control.explore.config import Baseline, SelectedNoise, Solver
from spotlight.control.explore.seeds import Chosen, by_candidate, prompt_mean, unselected
from spotlight.control.ledger import Ledger
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.core.errors import RewardError
from spotlight.core.events import AnyEvent, Compared, Selected
from spotlight.core.types import Prompt, Sample, SamplerKind, Sampling, Size, Version
from spotlight.core.work import Request, RequestId, Work

SCORES_EXPECTED = 8
"""Number of samples of which at least one has a score, unless the reward is broken."""
TOTAL = ""
"""Stands for the reward itself among the names of its terms."""
SEEDS_PER_PROMPT = 1 << 20
"""Seeds reserved per position in the prompt order, so that seeds of two positions never collide."""


def seeds_at(position: int, count: int, skip: int = 0) -> list[int]:
    """Seeds number skip .. skip+count-1 of the prompt at this position of the order."""
    return [position * SEEDS_PER_PROMPT + skip + number for number in range(count)]


class Candidate(NamedTuple):
    """A prompt that may be rolled out in an iteration."""

    number: int
    """Number among the iteration's candidates."""
    position: int
    """Position in the prompt order."""
    prompt: Prompt


class Samples:
    """The samples of a prompt: the one place where requests are made from settings."""

    def __init__(
        self,
        rollout: RolloutConfig,
        noise: SelectedNoise,
        size: Size,
        order: PromptOrder,
        run_seed: int,
        solver: Solver = Solver.ODE,
        candidates: int | None = None,
    ) -> None:
        """`candidates`: number of previewed prompts per iteration; None: those that are rolled out."""
        self.rollout = rollout
        self.candidate_count = candidates or rollout.prompts
        self.noise = noise
        self.solver = solver
        self.size = size
        self._order = order
        self._run_seed = run_seed

    def places(self, iteration: int) -> list[int]:
        """Places of the iteration's groups among all trained groups; candidates that were not chosen have none."""
        first = iteration * self.rollout.prompts
        return list(range(first, first + self.rollout.prompts))

    def candidates(self, iteration: int) -> list[Candidate]:
        first = iteration * self.candidate_count
        prompts = self._order.take(first, self.candidate_count)
        return [Candidate(number, first + number, prompt) for number, prompt in enumerate(prompts)]

    def exact(
        self, work: Work, iteration: int, group: int, candidate: Candidate, seeds: Sequence[int], version: int
    ) -> list[Request]:
        sampling, start = self._path(iteration, candidate)
        samples = _samples(candidate, seeds, sampling, version, start)
        return [Request(work=work, iteration=iteration, group=group, sample=sample) for sample in samples]

    def previews(
        self, iteration: int, candidate: Candidate, seeds: Sequence[int], steps: int, version: int
    ) -> list[Request]:
        """Previews with few ODE steps, or over the whole path with the noise of the rollout."""
        start: int | None
        if self.noise is SelectedNoise.PATH:
            sampling, start = self._path(iteration, candidate)
        else:
            # With the rollout's number of steps, the plain ODE takes the same steps as the rollout and ranks best.
            sampler = self.solver.sampler if steps < self.rollout.steps else SamplerKind.ODE
            sampling = Sampling(steps=steps, size=self.size, sampler=sampler, guidance=self.rollout.guidance)
            start = None
        samples = _samples(candidate, seeds, sampling, version, start)
        return [
            Request(work=Work.PREVIEW, iteration=iteration, group=candidate.number, sample=sample) for sample in samples
        ]

    def _path(self, iteration: int, candidate: Candidate) -> tuple[Sampling, int | None]:
        """The full sampling, and the seed of the group's shared initial noise; None if each sample has its own."""
        window = self.rollout.window_of_group(self._run_seed, iteration, candidate.number)
        shared = self.rollout.initial_noise is InitialNoise.SHARED
        return self.rollout.sampling(self.size, window), seeds_at(candidate.position, 1)[0] if shared else None


def _samples(
    candidate: Candidate, seeds: Sequence[int], sampling: Sampling, version: int, start: int | None
) -> list[Sample]:
    prompt = candidate.prompt.id
    return [
        Sample(prompt=prompt, seed=seed, sampling=sampling, version=Version(version), shared_start=start)
        for seed in seeds
    ]


class RunRewards(NamedTuple):
    """The rewards of a run."""

    weights: Mapping[str, float] = {}
    """Weight of each of several rewards, by the name of its component; empty for one reward."""
    combine: Combine = Combine.SUM
    first: str = ""
    """Name of the first reward."""


ONE_REWARD = RunRewards()


class Rollouts:
    """Issues, awaits and compares; each method does nothing where the journal shows it done."""

    def __init__(
        self,
        hub: Hub,
        samples: Samples,
        state: RunState,
        advantage: AdvantageConfig,
        emit: Callable[[AnyEvent], None],
        baseline: Baseline = Baseline.KEPT,
        rewards: RunRewards = ONE_REWARD,
    ) -> None:
        self._rewards = rewards
        self._hub = hub
        self._samples = samples
        self._state = state
        self._advantage = advantage
        self._emit = emit
        self._baseline = baseline

    def issue(self, iteration: int, selected: Selected | None) -> None:
        """Issue the groups that were not issued ahead, with the iteration's own weights."""
        issued = self.issued_groups(iteration)
        missing = [group for group in range(self._samples.rollout.prompts) if group not in issued]
        self._issue(iteration, missing, selected, iteration)
        if iteration not in self._state.compared:
            # For all groups: a crash may have come between the records of a group's rollouts and of its audits.
            self._issue_audits(iteration, self._versions(iteration), selected)
        self._hub.flush()

    def issue_ahead(self, iteration: int, groups: Sequence[int], selected: Selected | None) -> None:
        """Issue these groups with the previous weights: their samples will be one version old."""
        self._issue(iteration, groups, selected, iteration - 1)
        self._issue_audits(iteration, dict.fromkeys(groups, Version(iteration - 1)), selected)
        self._hub.flush()

    def audit_ahead(self, iteration: int, selected: Selected | None) -> None:
        """Issue audits that a crash left out after the rollouts of a group ahead, before its weights are dropped."""
        versions = self._versions(iteration)
        if versions:
            self._issue_audits(iteration, versions, selected)
            self._hub.flush()

    def issued_groups(self, iteration: int) -> set[int]:
        return {request.group for request in self._hub.dispatcher.ledger.iteration(iteration, Work.ROLLOUT)}

    def _issue(self, iteration: int, groups: Sequence[int], selected: Selected | None, version: int) -> None:
        """Issue these groups, with selected seeds where there are any."""
        if not groups:
            return
        candidates = self._samples.candidates(iteration)
        size = self._samples.rollout.group_size
        rollouts: list[Request] = []
        for group in groups:
            candidate = candidates[group if selected is None else selected.candidate(group)]
            seeds = seeds_at(candidate.position, size) if selected is None else selected.seeds[group]
            rollouts += self._samples.exact(Work.ROLLOUT, iteration, group, candidate, seeds, version)
        prompts = [candidate.prompt for candidate in candidates]
        self._hub.dispatcher.issue(rollouts, prompts, self._samples.places(iteration))

    def _versions(self, iteration: int) -> dict[int, Version]:
        """Version of the weights that each issued group is drawn with."""
        requests = self._hub.dispatcher.ledger.iteration(iteration, Work.ROLLOUT)
        return {request.group: request.sample.version for request in requests}

    def _issue_audits(self, iteration: int, versions: Mapping[int, Version], selected: Selected | None) -> None:
        """Issue the audit seeds of these groups, drawn like their group, unless they are issued already."""
        if selected is None or not any(selected.audit):
            return
        ledger, candidates = self._hub.dispatcher.ledger, self._samples.candidates(iteration)
        audits: list[Request] = []
        for group, version in versions.items():
            candidate, seeds = candidates[selected.candidate(group)], selected.audit[group]
            drawn = self._samples.exact(Work.AUDIT, iteration, group, candidate, seeds, version)
            audits += [request for request in drawn if request.id not in ledger]
        if audits:
            self._hub.dispatcher.issue(audits, [candidate.prompt for candidate in candidates])

    async def taken(self, iteration: int) -> None:
        """Wait until no rollout waits for a slot: from now on slots may run out of rollouts."""
        ledger, scheduler = self._hub.dispatcher.ledger, self._hub.dispatcher.scheduler
        await self._hub.until(
            lambda: not scheduler.waiting(Work.ROLLOUT),
            lambda: f"{_outstanding(ledger, iteration)} of iteration {iteration}",
        )

    async def finished(self, iteration: int) -> None:
        ledger = self._hub.dispatcher.ledger
        await self._hub.until(
            partial(ledger.is_made, iteration),
            lambda: f"{_outstanding(ledger, iteration)} of iteration {iteration}",
        )

    def compare(self, iteration: int) -> Compared:
        """Compute advantages within groups; a dropped sample counts as one without a usable reward."""
        known = self._state.compared.get(iteration)
        if known is not None:
            return known
        groups = self.requests_by_group(iteration)
        rewards = [self._scores(group) for group in groups]
        self._check_judge(iteration, groups, rewards)
        found = self._advantages(iteration, groups, rewards)
        compared = Compared(
            iteration=iteration,
            rewards=tuple(tuple(group.tolist()) for group in rewards),
            advantages=tuple(tuple(group.advantages.tolist()) for group in found),
            kept=tuple(tuple(group.kept.tolist()) for group in found),
            problems=tuple(problem for group in found for problem in group.problems),
            terms={
                name: tuple(tuple(self._scores(group, name).tolist()) for group in groups)
                for name in self._rewards.weights
            },
        )
        # Before the record: after a crash in between, the alarm is repeated instead of lost.
        self._alarm(compared)
        self._emit(compared)
        return compared

    def _alarm(self, compared: Compared) -> None:
        """Note rewards that are constant over the iteration, unless they had that score in all of the one before."""
        before = self._state.compared.get(compared.iteration - 1)
        known = constant_rewards(self._named(before)) if before is not None else {}
        constant = constant_rewards(self._named(compared))
        new = {name: score for name, score in constant.items() if known.get(name) != score}
        if new:
            self._hub.dispatcher.setbacks.note("rewards", alarm(compared.iteration, new))

    def _named(self, compared: Compared) -> dict[str, tuple[tuple[float, ...], ...]]:
        """Scores by a name for people."""
        total = "the sum of the rewards" if self._rewards.weights else f"the reward '{self._rewards.first}'"
        return {f"the reward '{name}'": groups for name, groups in compared.terms.items()} | {total: compared.rewards}

    def has_scale(self, iteration: int) -> bool:
        """Whether a group's advantages are known once it is complete, before others are."""
        is_lagged = self._advantage.std is StdMode.LAGGED and None not in self._lagged_stds().values()
        return is_lagged or self._advantage.std is StdMode.GROUP or iteration in self._state.compared

    def _lagged_stds(self) -> dict[str, float | None]:
        """Lagged std of each reward whose advantages are computed; the reward itself is TOTAL."""
        if self._rewards.combine is not Combine.GDPO:
            return {TOTAL: self._state.lagged.std}
        known = self._state.lagged_terms
        weighted = [name for name, weight in self._rewards.weights.items() if weight]
        return {name: known[name].std if name in known else None for name in weighted}

    def can_compare(self, iteration: int, group: int) -> bool:
        """Whether the group's advantages are known."""
        ledger = self._hub.dispatcher.ledger
        is_made = ledger.group_complete if self._baseline is Baseline.KEPT else ledger.is_group_made
        return self.has_scale(iteration) and is_made(iteration, group)

    def awaited(self, iteration: int, group: Sequence[Request]) -> list[RequestId]:
        """Requests that must finish before the group can be compared."""
        audits = self._audits(iteration, group[0].group) if self._baseline is Baseline.AUDITED else []
        return [request.id for request in (*group, *audits)]

    def compare_group(
        self, iteration: int, group: int, requests: Sequence[Request]
    ) -> tuple[Sequence[float], Sequence[bool]]:
        """Advantages of the group, and which samples are trained on; equal before and after `compare`."""
        known = self._state.compared.get(iteration)
        if known is not None:
            return known.advantages[group], known.kept[group]
        (found,) = self._advantages(iteration, [requests], [self._scores(requests)])
        return found.advantages.tolist(), found.kept.tolist()

    def _advantages(
        self, iteration: int, groups: Sequence[Sequence[Request]], rewards: list[np.ndarray]
    ) -> list[GroupAdvantages]:
        numbers = [group[0].group for group in groups]
        if self._rewards.combine is not Combine.GDPO:
            return group_advantages(
                rewards,
                std_mode=self._advantage.std,
                eps=self._advantage.eps,
                lagged_std=self._state.lagged.std,
                baselines=self._baselines(iteration, numbers, rewards, TOTAL),
            )
        terms = {name: [self._scores(group, name) for group in groups] for name in self._rewards.weights}
        return decoupled_advantages(
            terms,
            self._rewards.weights,
            std_mode=self._advantage.std,
            eps=self._advantage.eps,
            lagged_stds=self._lagged_stds(),
            baselines={name: self._baselines(iteration, numbers, known, name) for name, known in terms.items()},
        )

    def _baselines(
        self, iteration: int, groups: Sequence[int], scores: list[np.ndarray], term: str
    ) -> list[float | None] | None:
        """Baselines that replace the groups' means; None where no seed was selected or the means serve."""
        selected = self._state.selected.get(iteration)
        if self._baseline is Baseline.KEPT or selected is None:
            return None
        previews = by_candidate(self._state.previewed.get(iteration, ()))
        means = []
        for group, known in zip(groups, scores, strict=True):
            chosen = Chosen(selected.seeds[group], selected.fresh[group])
            left = unselected(previews.get(selected.candidate(group), []), chosen)
            means.append(prompt_mean(known, self._scores(self._audits(iteration, group), term), len(left)))
        return means

    def _audits(self, iteration: int, group: int) -> list[Request]:
        audits = self._hub.dispatcher.ledger.iteration(iteration, Work.AUDIT)
        return [request for request in audits if request.group == group]

    def _check_judge(self, iteration: int, groups: list[list[Request]], rewards: list[np.ndarray]) -> None:
        """Raise RewardError for a second iteration in a row without a comparable group, or for no score at all.

        One such iteration may be chance. Dropped samples do not count. Nothing is recorded: a resumed run scores again.
        """
        ledger = self._hub.dispatcher.ledger
        made = [request.id for group in groups for request in group if ledger.result(request.id) is not None]
        check_any_scored(f"rollouts of iteration {iteration}", [self._score(request) for request in made], self._hub)
        before = self._state.compared.get(iteration - 1)
        was_blind = before is not None and not any(any(group) for group in before.kept)
        if was_blind and not comparable_groups(rewards):
            raise RewardError(
                f"in iterations {iteration - 1} and {iteration} no group has two samples with a score, so there "
                f"is nothing to train on; {last_reason(self._hub)}; repair the reward, then resume."
            )

    def requests_by_group(self, iteration: int) -> list[list[Request]]:
        groups: dict[int, list[Request]] = {}
        for request in self._hub.dispatcher.ledger.iteration(iteration, Work.ROLLOUT):
            groups.setdefault(request.group, []).append(request)
        return [groups[group] for group in sorted(groups)]

    def _scores(self, group: Sequence[Request], term: str = TOTAL) -> np.ndarray:
        return np.array([self._score(request.id, term) for request in group], dtype=np.float64)

    def _score(self, request: RequestId, term: str = TOTAL) -> float:
        """The sample's score by one of several rewards, or its reward; NaN unless it has all of them."""
        accepted = self._hub.dispatcher.ledger.result(request)
        if accepted is None:
            return math.nan
        if term == TOTAL:
            return accepted.reward
        return accepted.components.get(term, math.nan) if math.isfinite(accepted.reward) else math.nan


def _outstanding(ledger: Ledger, iteration: int) -> str:
    counts = [(ledger.outstanding(iteration, work), work) for work in (Work.ROLLOUT, Work.AUDIT)]
    return " and ".join(f"{count} {work.value}s" for count, work in counts if count) or "the last results"


def check_any_scored(what: str, rewards: Sequence[float] | np.ndarray, hub: Hub) -> None:
    """Raise RewardError if none of many rewards is finite."""
    if len(rewards) >= SCORES_EXPECTED and not np.isfinite(np.asarray(rewards, dtype=np.float64)).any():
        raise RewardError(
            f"none of the {len(rewards)} {what} has a score, so training has no signal; {last_reason(hub)}; repair "
            "the reward, then resume."
        )


def last_reason(hub: Hub) -> str:
    problem = hub.dispatcher.setbacks.unscored_for
    return f"the last reason was: {problem}" if problem else "no reason was reported"
