"""Bandit planner: before each training phase, the number of seeds to preview per prompt, and their number of steps.

Its state is a fold of the run's events, so a resumed planner decides what the interrupted one would have decided
(tests/unit/test_planner.py):

    IterationDone                 training time                         -> the budget
    Planned, ExplorationClosed    predicted and actual seconds, unless  -> the time model
      Issued, Worker...             other work ran or slots changed
    Fidelity                      how well previews of S steps rank     -> the bandit
    Issued, Previewed, Compared   reward variance of each prompt        -> the split over prompts
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import TypeVar

import msgspec

from spotlight.control.explore.bandit import Bandit, best_arm
from spotlight.control.explore.config import ExploreConfig, PlanKind
from spotlight.control.explore.gain import Variances, allocate, gain, knee, spread_excess, with_reserve
from spotlight.control.explore.shortage import Shortage, paying_plan
from spotlight.control.explore.timing import TimeModel, frontier
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Compared,
    ExplorationClosed,
    Fidelity,
    Holding,
    Issued,
    IterationDone,
    Leased,
    Planned,
    Previewed,
    Selected,
    Worked,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.types import PromptId
from spotlight.core.work import Request, Work

T = TypeVar("T")

TRAINING_PER_ROLLOUT = 3.0
"""Guess before the first training phase has ended: training seconds per second of rollouts on these slots."""


class PlanInput(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs of a plan, when training is about to begin."""

    iteration: int
    """The iteration that the previews are for."""
    group_size: int
    full_steps: int
    """Steps of an exact rollout."""
    prompts: tuple[PromptId, ...]
    """Prompts by candidate."""
    speeds: tuple[float | None, ...]
    """Row-steps per second of each slot that is free to preview; None where not measured."""
    all_speeds: tuple[float | None, ...] = ()
    """Row-steps per second of all slots, which may preview after training."""
    slots: int = 0
    """Number of slots that are free to preview if none is missing."""
    stale_share: float = 0.0
    """Share of the iteration's rollouts that these slots may begin after previews; 0: none, and spare time is lost."""

    @property
    def rollout_steps(self) -> int:
        """Row-steps of an iteration's exact rollouts."""
        return len(self.prompts) * self.group_size * self.full_steps


class AwaitedGroups(msgspec.Struct, frozen=True):
    """Groups whose exact rollouts are not compared yet."""

    prompts: dict[int, PromptId]
    """Prompts by group number."""
    steps: int


class FinishedPreviews(msgspec.Struct, frozen=True):
    """Previews that were finished when training ended."""

    steps: int
    counts: dict[int, int]
    """Number of previews by candidate, and by group once candidates are chosen."""


class PlannerState(msgspec.Struct, frozen=True, kw_only=True):
    """All learned state; serialisable, for the journal's snapshots."""

    time: TimeModel = TimeModel()
    bandit: Bandit = Bandit()
    variances: Variances = Variances()
    issued: dict[int, AwaitedGroups] = {}
    """Iterations that were issued and not compared yet."""
    drawn: dict[int, FinishedPreviews] = {}
    """Previews for iterations that were not compared yet."""
    open_plan: Planned | None = None
    """The plan in progress; None also if slots came or went since, as its prediction then does not apply."""
    held_out: int = 0
    """Row-steps of held-out samples issued since the last plan: they are served before previews."""
    beside: int = 0
    """Row-steps of held-out samples that the open plan had to wait for."""


class Planner:
    """Decides by `plan`, learns by `apply`; deciding changes nothing."""

    def __init__(self, settings: ExploreConfig, state: PlannerState | None = None) -> None:
        self.settings = settings
        self.state = state or PlannerState()

    @classmethod
    def replay(cls, settings: ExploreConfig, events: Iterable[AnyEvent]) -> "Planner":
        planner = cls(settings)
        for event in events:
            planner.apply(event)
        return planner

    @property
    def relative_error(self) -> float | None:
        """Relative error of the last predicted exploration time."""
        return self.state.time.relative_error

    def apply(self, event: AnyEvent) -> None:
        """Learn from one event of the journal; most events change nothing."""
        state = self.state
        match event:
            case Leased() | Accepted() | Worked() | Holding():
                # Nearly all of a journal.
                pass
            case IterationDone():
                self._learn(time=state.time.trained(event.rollout_s, event.train_s))
            case Planned():
                self._learn(open_plan=event, beside=state.held_out, held_out=0)
            case WorkerLost() | WorkerJoined():
                self._learn(open_plan=None)
            case ExplorationClosed():
                self._learn(time=_timed(state, event), open_plan=None)
            case Fidelity() if "pearson" in event.figures:
                figures = event.figures
                audited = figures.get("audited", 0.0)
                discount = self.settings.discount
                self._learn(bandit=state.bandit.learned(event.steps, figures["pearson"], audited, discount))
            case Issued():
                held_out = sum(
                    request.sample.sampling.steps for request in event.requests if request.work is Work.EVALUATION
                )
                self._learn(issued=_joined(state.issued, event), held_out=state.held_out + held_out)
            case Previewed():
                before = state.drawn.get(event.iteration, FinishedPreviews(event.steps, {}))
                counts = Counter(before.counts) + Counter(event.groups)
                self._learn(drawn=state.drawn | {event.iteration: FinishedPreviews(event.steps, dict(counts))})
            case Selected() if event.prompts and event.iteration in state.drawn:
                drawn = state.drawn[event.iteration]
                chosen = {group: drawn.counts.get(number, 0) for group, number in enumerate(event.prompts)}
                self._learn(drawn=state.drawn | {event.iteration: FinishedPreviews(drawn.steps, chosen)})
            case Compared() if event.iteration in state.issued:
                known = state.issued[event.iteration].prompts
                prompts = tuple(known[number] for number in sorted(known))
                self._learn(
                    variances=state.variances.updated(prompts, event.rewards, _gains(state, event)),
                    issued=_after(event.iteration, state.issued),
                    drawn=_after(event.iteration, state.drawn),
                )

    def plan(self, given: PlanInput) -> Planned:
        """Plan the previews for the coming training phase; `reason` is a sentence for people."""
        speed = _total(given.speeds)
        trained_s = self.state.time.train_s
        budget_s = 0.0 if trained_s is None else trained_s * self.settings.planned_share
        if self.settings.follows_the_fleet and len(given.speeds) < max(1, given.slots) and not given.stale_share:
            found = self._short_of_slots(given)
            if found is not None:
                return found
        if not given.speeds and not self.settings.is_drawn_afterwards:
            return _planned(
                given, _no_seeds(given), self._fixed_steps(given), budget_s, 0.0, "no slot is free to preview"
            )
        if self.settings.plan is PlanKind.FIXED:
            return self._fixed(given, speed, budget_s, "the plan is fixed")
        if speed is None:
            reason = "the speed of the slots is not known yet, so the fixed plan"
            return self._fixed(given, speed, budget_s, reason)
        if trained_s is None:
            guess_s = given.rollout_steps * TRAINING_PER_ROLLOUT / speed * self.settings.planned_share
            return self._best(given, speed, guess_s, "the training time is not known yet; by a guess of it, ")
        if given.stale_share:
            # Held-out samples are served first; a plan that does not end with the window leaves no time for rollouts.
            window_s = max(0.0, min(budget_s, trained_s) - self.state.held_out / speed)
            preview_s = self._weighed(given, speed, window_s)
            return self._best(given, speed, preview_s, "beside rollouts that begin ahead of the weights, ")
        return self._best(given, speed, budget_s)

    def _short_of_slots(self, given: PlanInput) -> Planned | None:
        """The plan by expected gain per second; None if times are not known yet, or all prompts fit beside training."""
        settings, time, trained_s = self.settings, self.state.time, self.state.time.train_s
        speed, beside, held_out = _total(given.all_speeds), _total(given.speeds) or 0.0, self.state.held_out
        if trained_s is None or speed is None or settings.candidates > 1:
            return None
        variances = [self.state.variances.of(prompt) for prompt in given.prompts]
        rollouts = len(given.prompts) * given.group_size * time.row_steps(given.full_steps)
        shortage = Shortage(
            group_size=given.group_size,
            prompts=sum(variance > 0 for variance in variances),
            rolled_out=len(given.prompts),
            beside=max(0.0, beside * trained_s - held_out),
            speed=speed,
            # Slots may just have gone; and with GAP, most training is over when the last rollout is in.
            iteration_s=max(time.iteration_s, trained_s + rollouts / speed),
        )
        is_fixed = settings.plan is PlanKind.FIXED
        arms = [arm for arm in settings.arms if arm <= given.full_steps] or [given.full_steps]
        rho = self.state.bandit.curve([self._fixed_steps(given)] if is_fixed else arms, given.full_steps)
        audits = settings.audit_share * given.full_steps
        best = paying_plan(
            shortage,
            rho,
            settings.seeds if is_fixed else settings.most_seeds,
            lambda steps: time.row_steps(steps) + audits,
        )
        if best.seeds and best.prompts == shortage.prompts and not best.wait_s:
            return None
        budget_s = trained_s if given.speeds else 0.0
        lack = "slots are missing" if len(given.speeds) < given.slots else "no slot is free beside training"
        if not best.seeds:
            reason = f"{lack}, and previews after training would gain less than they cost"
            reason = reason if shortage.prompts else _reason_for_none(0, variances, given)
            return _planned(given, _no_seeds(given), best.steps, budget_s, 0.0, reason)
        varied = sorted(range(len(variances)), key=lambda number: (-variances[number], number))[: best.prompts]
        seeds = tuple(best.seeds if number in varied else 0 for number in range(len(variances)))
        # Audits are rolled out with the next iteration, and not awaited.
        work = sum(seeds) * time.row_steps(best.steps)
        awaited_s = shortage.after_s(work)
        late_s = max(0.0, held_out - beside * trained_s) / speed
        predicted_s = trained_s + late_s + awaited_s if awaited_s else work / beside
        reason = (
            f"{lack}: {best.seeds} previews of {best.prompts} prompts promise {best.gain:.2f} times the "
            f"variance of fresh seeds for {awaited_s:.1f} s after training"
        )
        planned = _planned(given, seeds, best.steps, budget_s, predicted_s, reason)
        return msgspec.structs.replace(planned, awaited_s=awaited_s)

    def _weighed(self, given: PlanInput, speed: float, window_s: float) -> float:
        """Seconds of the window for previews, where rollouts of the next iteration take the rest."""
        arms = [arm for arm in self.settings.arms if arm <= given.full_steps] or [given.full_steps]
        rho = self.state.bandit.curve(arms, given.full_steps, self.settings.alpha)
        most, prompts = self.settings.most_seeds, len(given.prompts)

        def promised(seconds: float) -> float:
            fits = {arm: self.state.time.fits(seconds, arm, speed) for arm in arms}
            return max(1 + rho[arm] ** 2 * spread_excess(fits[arm], prompts, given.group_size, most) for arm in arms)

        return knee(window_s, given.rollout_steps / speed, given.stale_share, promised)

    def _best(self, given: PlanInput, speed: float, budget_s: float, caveat: str = "") -> Planned:
        variances = [self.state.variances.of(prompt) for prompt in given.prompts]
        most = self.settings.most_seeds * len(given.prompts)
        candidates = frontier(self.settings.arms, given.full_steps, self.state.time, budget_s, speed, most)
        arms = [candidate.steps for candidate in candidates]
        optimistic = self.state.bandit.curve(arms, given.full_steps, self.settings.alpha)
        splits = {
            candidate.steps: allocate(variances, given.group_size, candidate.previews, self.settings.most_seeds)
            for candidate in candidates
        }
        steps = best_arm({arm: optimistic[arm] ** 2 * splits[arm].excess for arm in arms}, arms)
        seeds = splits[steps].seeds
        if self.settings.is_cut_off and not given.stale_share:
            seeds = with_reserve(seeds, variances)
        predicted_s = self.state.time.predict(sum(seeds), steps, speed)
        if not any(seeds):
            most_previews = max(candidate.previews for candidate in candidates)
            reason = caveat + _reason_for_none(most_previews, variances, given)
            return _planned(given, seeds, steps, budget_s, predicted_s, reason)
        expected = 1 + self.state.bandit.curve(arms, given.full_steps)[steps] ** 2 * splits[steps].excess
        count = sum(splits[steps].seeds)
        promise = f"{count} previews of {steps} steps promise {expected:.2f} times the variance of fresh seeds"
        return _planned(given, seeds, steps, budget_s, predicted_s, caveat + promise)

    def _fixed(self, given: PlanInput, speed: float | None, budget_s: float, reason: str) -> Planned:
        seeds, steps = self.settings.seeds, self._fixed_steps(given)
        if seeds <= given.group_size:
            reason = f"explore.seeds is {seeds}, but a group keeps {given.group_size}: nothing could be selected"
            return _planned(given, _no_seeds(given), steps, budget_s, 0.0, reason)
        previews = self.settings.planned_previews(round(len(given.prompts) / self.settings.candidates))
        predicted_s = 0.0 if speed is None else self.state.time.predict(previews, steps, speed)
        planned = _planned(given, (seeds,) * len(given.prompts), steps, budget_s, predicted_s, reason)
        return msgspec.structs.replace(planned, given_up=sum(planned.seeds) - previews)

    def _fixed_steps(self, given: PlanInput) -> int:
        return min(self.settings.steps, given.full_steps)

    def _learn(self, **changes: object) -> None:
        self.state = msgspec.structs.replace(self.state, **changes)


def _planned(
    given: PlanInput, seeds: tuple[int, ...], steps: int, budget_s: float, predicted_s: float, reason: str
) -> Planned:
    return Planned(
        iteration=given.iteration,
        seeds=seeds,
        steps=steps,
        budget_s=budget_s,
        predicted_s=predicted_s,
        reason=reason,
    )


def _total(speeds: Sequence[float | None]) -> float | None:
    """Speed of all these slots; an unmeasured one counts as the mean of the others. None if none is measured."""
    measured = [speed for speed in speeds if speed]
    return fmean(measured) * len(speeds) if measured else None


def _no_seeds(given: PlanInput) -> tuple[int, ...]:
    return (0,) * len(given.prompts)


def _reason_for_none(previews: int, variances: Sequence[float], given: PlanInput) -> str:
    if not any(variances):
        return "no prompt's rewards have varied lately, so there is nothing to select"
    return f"{previews} previews fit before training ends, but a group keeps {given.group_size}: nothing to select"


def _timed(state: PlannerState, event: ExplorationClosed) -> TimeModel:
    plan = state.open_plan
    started = event.finished + event.discarded
    if plan is None or plan.iteration != event.iteration or not started:
        return state.time
    return state.time.previewed(
        steps=plan.steps,
        planned=plan.previews,
        finished=event.finished,
        predicted_s=plan.predicted_s,
        seconds=event.seconds,
        # A prediction beyond the end of training contains them: the slots that serve them are not those after it.
        beside=0 if plan.awaited_s else state.beside,
    )


def _gains(state: PlannerState, event: Compared) -> tuple[float, ...]:
    """The gain that the previews of each group promised; 1 for groups without previews."""
    drawn = state.drawn.get(event.iteration)
    if drawn is None:
        return (1.0,) * len(event.rewards)
    rho = state.bandit.curve([drawn.steps], state.issued[event.iteration].steps)[drawn.steps]
    return tuple(gain(drawn.counts.get(number, 0), len(group), rho) for number, group in enumerate(event.rewards))


def _after(iteration: int, known: Mapping[int, T]) -> dict[int, T]:
    return {number: value for number, value in known.items() if number > iteration}


def _joined(known: Mapping[int, AwaitedGroups], event: Issued) -> dict[int, AwaitedGroups]:
    """Add the groups of this event; those of one iteration may come in several events."""
    found: dict[int, dict[int, Request]] = {}
    for request in event.requests:
        if request.work is Work.ROLLOUT:
            found.setdefault(request.iteration, {})[request.group] = request
    joined = dict(known)
    for iteration, groups in found.items():
        before = known[iteration].prompts if iteration in known else {}
        prompts = before | {number: request.sample.prompt for number, request in groups.items()}
        joined[iteration] = AwaitedGroups(prompts, next(iter(groups.values())).sample.sampling.steps)
    return joined
