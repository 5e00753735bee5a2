"""One optimizer step as ordered from the gang: whole, or in parts as groups are completed.

    in parts:  wait for complete groups --> Accumulated --> wait ... --> the final part: Stepped

A step is not committed before its iteration is compared; then the advantages it was trained with are checked against
the journal. Invariant: a step trains every surviving sample of its groups once, with the advantages of `Compared`,
whatever parts it came in (tests/journeys/test_parts.py, tests/storm).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf

import msgspec

from spotlight.compute.train.config import LOG_PROB_GAP
from spotlight.control.ledger import InvariantBroken
from spotlight.control.pipeline.config import PipelineConfig
from spotlight.control.pipeline.gap import Awaited, Part, Parts, group_positions, groups_by_update
from spotlight.control.pipeline.tag import NextPart
from spotlight.control.scheduler.booking import GroupOrder, by_number
from spotlight.controller.gang import Gang, GangLost
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import Rollouts
from spotlight.core import messages as m
from spotlight.core.errors import SpotlightError, error_of
from spotlight.core.events import Accepted, Compared, StepCommitted
from spotlight.core.work import Request, Work

EXACT = (Work.ROLLOUT, Work.AUDIT)
MEMORY = 0.8
"""Weight of the previous seconds per sample at every new measurement."""


@dataclass(frozen=True)
class Schedule:
    """Maps steps to iterations, updates and groups."""

    updates: int
    run_seed: int
    pipeline: PipelineConfig
    is_fixed: bool
    """Whether parts must be the same in every run."""
    gap_allowed: float = inf
    """Largest mean gap between the log-probs of rollout and training."""

    def groups(self, step: int, count: int) -> list[int]:
        """Groups of the `count` in its iteration that the step trains on."""
        iteration, update = divmod(step, self.updates)
        return sorted(groups_by_update(range(count), self.updates, self.run_seed, iteration)[update])

    def group_order(self, groups: int) -> GroupOrder:
        """Positions at which the groups of rollouts and audits are needed, with `groups` groups per iteration."""
        if not self.pipeline.gap:
            return by_number

        @lru_cache(maxsize=4)
        def positions(iteration: int) -> dict[int, int]:
            return group_positions(groups, self.updates, self.run_seed, iteration)

        return lambda request: positions(request.iteration)[request.group] if request.work in EXACT else request.group

    def is_last(self, step: int) -> bool:
        return step % self.updates == self.updates - 1


@dataclass(frozen=True)
class Taken:
    """A step that the gang has taken and that is not in the journal yet."""

    step: int
    iteration: int
    update: int
    items: tuple[m.TrainItem, ...]
    places: tuple[tuple[int, int], ...]
    """Group of each item, and its place in the group."""
    stepped: m.Stepped

    def check(self, compared: Compared) -> None:
        """Raise unless it was trained with the compared advantages."""
        for item, (group, place) in zip(self.items, self.places, strict=True):
            expected = compared.advantages[group][place], compared.kept[group][place]
            if (item.advantage, item.kept) != expected:
                raise InvariantBroken(
                    f"step {self.step} trained {item.request.id} with advantage {item.advantage} (kept: {item.kept}), "
                    f"but it was compared to {expected[0]} (kept: {expected[1]}); report this as a bug."
                )


@dataclass
class _OrderedStep:
    """The orders of a step so far."""

    orders: int = 0
    items: dict[tuple[int, int], m.TrainItem] = field(default_factory=dict)
    """Items by group and place."""


class OptimizerSteps:
    """Orders optimizer steps from the gang."""

    def __init__(self, hub: Hub, gang: Gang, rollouts: Rollouts, schedule: Schedule) -> None:
        self._hub = hub
        self._gang = gang
        self._rollouts = rollouts
        self._schedule = schedule
        self._sample_s: float | None = None
        """Training seconds per sample; None until measured."""
        self._is_gap_noted = False

    async def take(self, step: int) -> Taken:
        """Train all samples of the step, then take one optimizer step; GangLost leaves nothing of it."""
        underway = _OrderedStep()
        if self._schedule.pipeline.gap:
            stepped = await self._take_parts(step, underway)
        else:
            stepped = await self._take_whole(step, underway)
        iteration, update = divmod(step, self._schedule.updates)
        places = sorted(underway.items)
        items = tuple(underway.items[place] for place in places)
        return Taken(step, iteration, update, items, tuple(places), stepped)

    def commit(self, taken: Taken, compared: Compared) -> None:
        """Record the step in the journal, with its samples and the frontier."""
        taken.check(compared)
        self._watch_gap(taken)
        ledger = self._hub.dispatcher.ledger
        requests = tuple(item.request.id for item in taken.items)
        ledger.commit_step(
            StepCommitted(
                step=taken.step,
                iteration=taken.iteration,
                update=taken.update,
                requests=requests,
                frontier=ledger.frontier_after(requests),
                digest=taken.stepped.digest,
                figures=taken.stepped.figures,
            )
        )

    def _watch_gap(self, taken: Taken) -> None:
        """Alarm once if the log-probs of rollout and training differ more than the loss bears."""
        gap, allowed = taken.stepped.figures.get(LOG_PROB_GAP, 0.0), self._schedule.gap_allowed
        if gap > allowed and not self._is_gap_noted:
            self._is_gap_noted = True
            self._hub.dispatcher.setbacks.note(
                "training",
                f"the log-probs of rollout and training differ by {gap:.2g} on average at the same weights, more than "
                f"the {allowed:.2g} that the loss bears, so ratios of step {taken.step} are wrong; set "
                "algorithm.old_log_prob to recomputed, or model.dtype to float32.",
            )

    def expect(self, step: int) -> None:
        """Announce that this step waits for rollouts that are about to be issued."""
        self._wait(step, lambda: self._parts(self._groups(step)))

    async def _take_whole(self, step: int, underway: _OrderedStep) -> m.Stepped:
        groups = self._groups(step)
        order = self._order(step, sorted(groups), groups, underway)
        self._check_any(step, underway)
        return await self._gang.step(order)

    async def _take_parts(self, step: int, underway: _OrderedStep) -> m.Stepped:
        groups = self._groups(step)
        parts = self._parts(groups)
        announced = sum(len(requests) for requests in groups.values())
        while True:
            part = await self._next(parts, step)
            order = self._order(step, part.groups, groups, underway)
            began = self._hub.clock.now()
            if part.is_final:
                self._check_any(step, underway)
                stepped = await self._gang.step(_part(order, underway, len(underway.items), is_final=True))
                self._measure(order, began)
                return stepped
            if order.items:
                await self._gang.accumulate(_part(order, underway, announced, is_final=False))
                self._measure(order, began)
                underway.orders += 1

    async def _next(self, parts: Parts, step: int) -> Part:
        """Wait for the next part; meanwhile the gang may assist with rollouts."""
        iteration = step // self._schedule.updates
        found: list[Part] = []

        def is_there() -> bool:
            # Evaluated any number of times, so a part is taken once.
            if not found and self._gang.is_restored() and self._may_begin(iteration):
                part = parts.take(lambda group: self._rollouts.can_compare(iteration, group))
                found.extend([part] if part is not None else [])
            return bool(found) or not self._gang.is_restored()

        if not is_there():
            self._wait(step, lambda: parts)
            self._hub.flush()
            await self._hub.until(is_there, f"groups of iteration {iteration} to train on")
        if not found:
            raise GangLost("the gang was lost while it waited for groups to train on")
        return found[0]

    def _may_begin(self, iteration: int) -> bool:
        """Whether parts save time: where no other slot rolls out, they would only interrupt the gang's rollouts."""
        dispatcher = self._hub.dispatcher
        return bool(dispatcher.directory.rolling()) or dispatcher.ledger.is_made(iteration)

    # -- prediction ----------------------------------------------------------------------------------------------------

    def _wait(self, step: int, parts: Callable[[], Parts]) -> None:
        assist, now = self._hub.dispatcher.assist, self._hub.clock.now()
        assist.wait(lambda: self._next_part(step, parts().awaited()), now)

    def _next_part(self, step: int, awaited: Awaited) -> NextPart:
        iteration, update = divmod(step, self._schedule.updates)
        groups = self._rollouts.requests_by_group(iteration)
        if not self._rollouts.has_scale(iteration):
            # Nothing is trained before the iteration is compared.
            return NextPart([[request.id for group in groups for request in group]], 1, None)
        later = range(step + 1, step + self._schedule.updates - update)
        left = [*awaited.left, *(group for after in later for group in self._schedule.groups(after, len(groups)))]
        awaited_ids = [self._rollouts.awaited(iteration, groups[group]) for group in awaited.groups]
        if self._sample_s is None:
            return NextPart(awaited_ids, awaited.count, None)
        train_s = self._sample_s * sum(len(groups[group]) for group in left)
        return NextPart(awaited_ids, awaited.count, train_s, self._sample_s, iteration)

    def _measure(self, order: m.Train, began: float) -> None:
        """Update the training seconds per sample."""
        sample_s = (self._hub.clock.now() - began) / max(len(order.items), 1)
        self._sample_s = sample_s if self._sample_s is None else MEMORY * self._sample_s + (1 - MEMORY) * sample_s

    # -- orders --------------------------------------------------------------------------------------------------------

    def _parts(self, groups: dict[int, list[Request]]) -> Parts:
        return Parts(sorted(groups), self._schedule.pipeline.least_groups, self._schedule.is_fixed)

    def _groups(self, step: int) -> dict[int, list[Request]]:
        """Requests of the step's groups, equal after every restart."""
        groups = self._rollouts.requests_by_group(step // self._schedule.updates)
        return {group: groups[group] for group in self._schedule.groups(step, len(groups))}

    def _order(
        self, step: int, wanted: Sequence[int], groups: dict[int, list[Request]], underway: _OrderedStep
    ) -> m.Train:
        iteration, ledger = step // self._schedule.updates, self._hub.dispatcher.ledger
        items = {}
        for group in wanted:
            advantages, kept = self._rollouts.compare_group(iteration, group, groups[group])
            for place, request in enumerate(groups[group]):
                accepted = ledger.result(request.id)
                if accepted is not None:
                    items[group, place] = self._item(request, accepted, advantages[place], kept[place])
        underway.items |= items
        last = self._schedule.is_last(step)
        return m.Train(step=step, iteration=iteration, items=tuple(items.values()), last=last)

    def _item(self, request: Request, accepted: Accepted, advantage: float, kept: bool) -> m.TrainItem:
        assert accepted.payload is not None
        prompt = self._hub.dispatcher.directory.prompts[request.sample.prompt]
        return m.TrainItem(request=request, prompt=prompt, payload=accepted.payload, advantage=advantage, kept=kept)

    def _check_any(self, step: int, underway: _OrderedStep) -> None:
        if not underway.items:
            iteration, update = divmod(step, self._schedule.updates)
            last = self._hub.dispatcher.setbacks.last
            reason = last.problem.rstrip(".") if last is not None else "`spotlight audit` has the reasons"
            raise error_of(
                last.exit_code if last is not None else SpotlightError.exit_code,
                f"every sample of update {update} of iteration {iteration} was given up ({reason}), so there is "
                "nothing to train on and the update cannot be skipped; remove the cause, then start a new run from "
                "the newest weights of this one (`spotlight train --model.name RUN`).",
            )


def _part(order: m.Train, underway: _OrderedStep, samples: int, is_final: bool) -> m.Train:
    """`samples` of an unfinished step are the requested ones: some may be dropped later."""
    return msgspec.structs.replace(order, part=underway.orders, samples=samples, is_final=is_final)
