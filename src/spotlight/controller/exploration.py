"""Exploration beside training: previews of the next prompts on the weights that the slots still hold.

    begin(k+1): plan, issue previews of version k        close(k+1): stop, choose seeds        learn(k+1): exact rewards

Where more prompts are candidates than are rolled out (`explore.candidates`), prompts are chosen as well; with
`explore.scouts` in two rounds:

    SCOUTING: a few seeds of every candidate --all are in--> DEEPENING: the other seeds of those that vary most

Previews only choose. Unfinished ones may run on after training as far as `explore.overrun` allows, by default only
where slots are missing and the plan says that it pays, and are then discarded. In deterministic mode the loop waits for
all planned previews, so that every run chooses the same seeds; with `explore.timing: inline` they begin when training
has ended, and the loop waits for them.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, Protocol

from spotlight.control.explore.config import AUTO, Timing
from spotlight.control.explore.fidelity import AuditedGroup, AuditedSeed, fidelity
from spotlight.control.explore.planner import PlanInput, Planner
from spotlight.control.explore.seeds import (
    Preview,
    audit_key,
    audit_seeds,
    by_candidate,
    choose,
    most_varied,
    unselected,
    usable,
)
from spotlight.control.ledger import SampleState
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import SEEDS_PER_PROMPT, Candidate, Samples, seeds_at
from spotlight.core.events import AnyEvent, ExplorationClosed, Fidelity, Planned, Previewed, Selected
from spotlight.core.types import Version
from spotlight.core.work import Request, Work


class Explorer(Protocol):
    """Interface of exploration for the loop; `NoExploration` without it."""

    def begin_early(self, iteration: int) -> None: ...

    def begin(self, iteration: int) -> None: ...

    async def close(self, iteration: int) -> None: ...

    def is_in(self, iteration: int) -> bool:
        """Whether all previews planned beside training are in, so that closing does not wait for them."""

    def learn(self, iteration: int) -> None: ...


class NoExploration:
    """Always fresh seeds."""

    def begin_early(self, iteration: int) -> None:
        pass

    def begin(self, iteration: int) -> None:
        pass

    async def close(self, iteration: int) -> None:
        pass

    def is_in(self, iteration: int) -> bool:
        return True

    def learn(self, iteration: int) -> None:
        pass


LONGEST_WAIT = 2.0
"""Largest wait for previews that were planned to be awaited, over the predicted one: slots may be lost meanwhile."""


@dataclass(frozen=True)
class Patience:
    """Time that the loop waits for previews after training."""

    timing: Timing
    overrun: float | Literal["auto"]
    is_endless: bool
    """Whether every planned preview is awaited, so that the choice does not depend on the slots present."""

    def seconds(self, trained_s: float, awaited_s: float) -> float | None:
        """Seconds to wait, where the plan has predicted `awaited_s`; None without a limit."""
        if self.is_endless or self.timing is Timing.INLINE:
            return None
        return LONGEST_WAIT * awaited_s if self.overrun == AUTO else self.overrun * trained_s


@dataclass(frozen=True, kw_only=True)
class ExplorationRules:
    """Settings of the run that exploration follows."""

    run_seed: int
    iterations: int
    audit_share: float
    scouts: int
    """Seeds of each candidate whose previews decide which candidates get the others; 0: every candidate gets all."""
    patience: Patience
    stale_share: float
    """Share of the next iteration's rollouts that may begin when all previews are in."""
    slots: int
    """Slots that do not train, if none is missing."""
    is_assisted: bool
    """Whether trainers roll out, and preview, beside other slots; otherwise only where there are no others."""
    is_early: bool
    """Whether previews begin beside the last rollouts: trainers wait for none of them, and no plan depends on them."""


class Exploration:
    """Plans, previews, selects, and measures the fidelity of previews."""

    def __init__(
        self,
        hub: Hub,
        samples: Samples,
        state: RunState,
        planner: Planner,
        rules: ExplorationRules,
        trained_s: Callable[[], float],
        emit: Callable[[AnyEvent], None],
    ) -> None:
        """`trained_s` returns the seconds of all training so far."""
        self._hub = hub
        self._samples = samples
        self._state = state
        self._planner = planner
        self._rules = rules
        self._trained_s = trained_s
        self._trained_before = 0.0
        """Seconds of training when the last exploration was closed."""
        self._emit = emit
        self._begun = 0
        """Last iteration that was planned for."""
        self._began = 0.0
        self._awaited_s = 0.0
        self._ended: asyncio.Task[float] | None = None
        """Returns the time at which the last planned preview was in."""
        self._is_scouting = False
        """Whether more seeds follow when all previews are in."""

    def begin_early(self, iteration: int) -> None:
        """Begin as soon as no rollout waits for a slot, so that slots without one preview."""
        if self._rules.is_early:
            self.begin(iteration)

    def begin(self, iteration: int) -> None:
        """Plan for the current slots and issue previews, unless they are drawn inline or have begun."""
        if self._rules.patience.timing is Timing.BESIDE and self._begun < iteration:
            self._begin(iteration)

    def _begin(self, iteration: int) -> None:
        self._begun = iteration
        if iteration in self._state.selected or iteration >= self._rules.iterations:
            return
        candidates = self._samples.candidates(iteration)
        plan = self._planner.plan(
            PlanInput(
                iteration=iteration,
                group_size=self._samples.rollout.group_size,
                full_steps=self._samples.rollout.steps,
                prompts=tuple(candidate.prompt.id for candidate in candidates),
                speeds=self._speeds(),
                all_speeds=self._all_speeds(),
                slots=0 if self._rules.patience.is_endless else self._rules.slots,
                stale_share=self._rules.stale_share,
            )
        )
        self._emit(plan)
        self._awaited_s = plan.awaited_s
        self._began = self._hub.clock.now()
        self._is_scouting = self._rules.scouts > 0 and any(plan.seeds)
        first = self._rules.scouts or max(plan.seeds)
        if self._issue(plan, candidates, 0, first):
            self._ended = asyncio.create_task(self._end(plan))

    def _issue(self, plan: Planned, candidates: list[Candidate], first: int, end: int) -> bool:
        """Issue previews of the planned seeds number first .. end-1 of these candidates; False if there are none."""
        requests: list[Request] = []
        for candidate in candidates:
            seeds = seeds_at(candidate.position, plan.seeds[candidate.number])[first:end]
            requests += self._samples.previews(plan.iteration, candidate, seeds, plan.steps, plan.iteration - 1)
        if requests:
            # Breadth first: whenever training ends, every prompt has had about the same number of previews.
            requests.sort(key=lambda request: (request.sample.seed % SEEDS_PER_PROMPT, request.group))
            self._hub.dispatcher.issue(requests, [candidate.prompt for candidate in candidates])
            self._hub.flush()
        return bool(requests)

    async def _end(self, plan: Planned) -> float:
        ledger = self._hub.dispatcher.ledger
        try:
            await self._hub.until(lambda: not ledger.outstanding(plan.iteration, Work.PREVIEW))
            if self._is_scouting:
                self._deepen(plan)
                await self._hub.until(lambda: not ledger.outstanding(plan.iteration, Work.PREVIEW))
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            # Fail every waiter: the second round does more than wait, so its error must not stay in this task.
            self._hub.fail(error)
        return self._hub.clock.now()

    def _deepen(self, plan: Planned) -> None:
        """Issue the other seeds of the candidates that vary most, once the scouts are in."""
        candidates = self._samples.candidates(plan.iteration)
        found: dict[int, list[Preview]] = {}
        for request in self._accepted(plan.iteration):
            reward = self._hub.dispatcher.ledger.accepted(request.id).reward
            found.setdefault(request.group, []).append(Preview(request.sample.seed, reward))
        self._is_scouting = False
        self._issue(plan, [candidates[number] for number in self._varied(found)], self._rules.scouts, max(plan.seeds))

    def _varied(self, previews: dict[int, list[Preview]]) -> tuple[int, ...]:
        """Candidates to roll out, by these previews."""
        rollout = self._samples.rollout
        known = [previews.get(number, []) for number in range(self._samples.candidate_count)]
        return most_varied(known, rollout.prompts, rollout.group_size)

    def _accepted(self, iteration: int) -> list[Request]:
        """Accepted previews, by candidate and seed."""
        ledger = self._hub.dispatcher.ledger
        requests = ledger.iteration(iteration, Work.PREVIEW)
        accepted = [request for request in requests if ledger.state(request.id) is SampleState.ACCEPTED]
        return sorted(accepted, key=lambda request: (request.group, request.sample.seed))

    def _is_drawn(self, iteration: int) -> bool:
        """Whether every planned preview is in."""
        return not self._is_scouting and not self._hub.dispatcher.ledger.outstanding(iteration, Work.PREVIEW)

    def _speeds(self) -> tuple[float | None, ...]:
        """Row-steps per second of the slots that will not train; None where not measured.

        Where previews are awaited, the present slots must not matter: the plan is made for one slot.
        """
        if self._rules.patience.is_endless:
            return (None,)
        if self._rules.patience.timing is Timing.INLINE:
            return self._all_speeds()
        dispatcher = self._hub.dispatcher
        return tuple(dispatcher.scheduler.measured_speed(worker) for worker in dispatcher.directory.rolling())

    def _all_speeds(self) -> tuple[float | None, ...]:
        """Row-steps per second of the slots that preview after training."""
        dispatcher = self._hub.dispatcher
        rolling = dispatcher.directory.rolling()
        workers = rolling if rolling and not self._rules.is_assisted else sorted(dispatcher.directory.workers)
        return tuple(dispatcher.scheduler.measured_speed(worker) for worker in workers)

    async def close(self, iteration: int) -> None:
        """Choose seeds from the finished previews, after training has ended or when nothing is left to preview."""
        if iteration in self._state.selected or iteration >= self._rules.iterations:
            return
        ledger = self._hub.dispatcher.ledger
        if self._rules.patience.timing is Timing.INLINE:
            self._begin(iteration)
        await self._finished(iteration)
        if iteration in self._state.selected:
            # The rollouts ahead of the weights also waited for the last preview, and have closed the exploration.
            return
        requests = ledger.iteration(iteration, Work.PREVIEW)
        discarded_steps = self._hub.dispatcher.scheduler.steps_under_way(Work.PREVIEW)
        self._hub.dispatcher.cancel(Work.PREVIEW)
        self._hub.flush()
        finished = self._accepted(iteration)
        if finished:
            self._emit(
                Previewed(
                    iteration=iteration,
                    steps=finished[0].sample.sampling.steps,
                    version=Version(iteration - 1),
                    groups=tuple(request.group for request in finished),
                    seeds=tuple(request.sample.seed for request in finished),
                    rewards=tuple(ledger.accepted(request.id).reward for request in finished),
                )
            )
        self._emit(
            ExplorationClosed(
                iteration=iteration,
                finished=len(finished),
                discarded=len(requests) - len(finished),
                seconds=self._seconds(),
                discarded_steps=discarded_steps,
            )
        )
        self._select(iteration, requests)

    def is_in(self, iteration: int) -> bool:
        is_begun = self._rules.patience.timing is Timing.BESIDE and self._begun >= iteration
        return (is_begun and self._is_drawn(iteration)) or iteration in self._state.selected

    def _seconds(self) -> float:
        """Seconds of previewing: time after the last preview is left out, as it is not part of their cost."""
        ended, self._ended = self._ended, None
        if ended is not None and ended.done():
            return ended.result() - self._began
        if ended is not None:
            ended.cancel()
        return self._hub.clock.now() - self._began

    async def _finished(self, iteration: int) -> None:
        """Wait for all planned previews, or as long as `patience` allows."""
        # With GAP most of an iteration is trained before its previews begin.
        trained_s = max(self._trained_s() - self._trained_before, self._hub.clock.now() - self._began)
        self._trained_before = self._trained_s()
        seconds = self._rules.patience.seconds(trained_s, self._awaited_s)
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._hub.until(lambda: self._is_drawn(iteration), f"previews for iteration {iteration}")

    def _select(self, iteration: int, issued: list[Request]) -> None:
        previews = self._previews(iteration)
        size = self._samples.rollout.group_size
        seeds, fresh, audits = [], [], []
        drawn = Counter(request.group for request in issued)
        candidates, prompts = self._samples.candidates(iteration), self._varied(previews)
        for number in prompts:
            candidate, seen = candidates[number], previews.get(number, [])
            chosen = choose(seen, size, seeds_at(candidate.position, size, skip=drawn[number]))
            seeds.append(chosen.seeds)
            fresh.append(chosen.fresh)
            key = audit_key(self._rules.run_seed, iteration, candidate.prompt.id)
            audits.append(audit_seeds(unselected(seen, chosen), self._rules.audit_share, key))
        self._emit(
            Selected(
                iteration=iteration,
                seeds=tuple(seeds),
                fresh=tuple(fresh),
                audit=tuple(audits),
                prompts=prompts if len(prompts) < len(candidates) else (),
            )
        )

    def learn(self, iteration: int) -> None:
        """Measure how well previews ranked, once the exact rewards of kept and audited seeds are in."""
        selected, previewed = self._state.selected.get(iteration), self._state.previewed.get(iteration)
        if selected is None or not previewed or iteration in self._state.fidelity:
            return
        exact = self._exact(iteration)
        groups = []
        previews = self._previews(iteration)
        for group in range(len(selected.seeds)):
            seen = previews.get(selected.candidate(group))
            if seen is None:
                continue
            proxies = {preview.seed: preview.reward for preview in seen}
            pairs = {seed: AuditedSeed(proxies[seed], exact[seed]) for seed in sorted(proxies) if seed in exact}
            kept, audit = set(selected.seeds[group]), set(selected.audit[group])
            groups.append(
                AuditedGroup(
                    kept=tuple(pair for seed, pair in pairs.items() if seed in kept),
                    audited=tuple(pair for seed, pair in pairs.items() if seed in audit),
                    share=self._rules.audit_share,
                    previewed=len(usable(seen)),
                )
            )
        self._emit(Fidelity(iteration=iteration, steps=previewed[0].steps, figures=fidelity(groups)))

    def _previews(self, iteration: int) -> dict[int, list[Preview]]:
        return by_candidate(self._state.previewed.get(iteration, ()))

    def _exact(self, iteration: int) -> dict[int, float]:
        ledger = self._hub.dispatcher.ledger
        return {
            request.sample.seed: ledger.accepted(request.id).reward
            for work in (Work.ROLLOUT, Work.AUDIT)
            for request in ledger.iteration(iteration, work)
            if ledger.state(request.id) in (SampleState.ACCEPTED, SampleState.TRAINED)
        }
