"""Held-out evaluation on the run's own workers: fixed prompts and seeds, the averaged weights, every n iterations."""

import math
from collections.abc import Callable

import numpy as np

from spotlight.compute.rewards.protocol import JUDGE, Scores
from spotlight.compute.rollout.config import EvalConfig
from spotlight.compute.scores import Evaluation, estimate
from spotlight.control.ledger import SampleState
from spotlight.control.run_state import RunState
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import check_any_scored
from spotlight.controller.training import Training
from spotlight.core.events import Accepted, AnyEvent, Evaluated
from spotlight.core.types import Prompt, Sample, Size, Version
from spotlight.core.work import Policy, Request, Work


class HeldOut:
    """One evaluation at a time: `begin` issues it, `finished` waits for it and records the scores."""

    def __init__(
        self,
        hub: Hub,
        training: Training,
        state: RunState,
        settings: EvalConfig,
        prompts: list[Prompt],
        size: Size,
        iterations: int,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._hub = hub
        self._training = training
        self._state = state
        self._settings = settings
        self._prompts = prompts
        self._size = size
        self._iterations = iterations
        self._emit = emit

    def is_due(self, iteration: int) -> bool:
        due = iteration % self._settings.every == 0 or iteration == self._iterations
        return due and iteration not in self._state.evaluated

    async def begin(self, iteration: int) -> None:
        """Issue an evaluation if one is due for the weights after `iteration` iterations."""
        if not self.is_due(iteration):
            return
        await self._training.publish(iteration, Policy.AVERAGE)
        dispatcher = self._hub.dispatcher
        if not dispatcher.ledger.iteration(iteration, Work.EVALUATION):
            dispatcher.issue(self._requests(iteration), self._prompts)
        self._hub.flush()

    async def finished(self, iteration: int) -> None:
        """Wait for the evaluation, if there is one, and record its scores."""
        if not self.is_due(iteration):
            return
        ledger = self._hub.dispatcher.ledger
        await self._hub.until(
            lambda: not ledger.outstanding(iteration, Work.EVALUATION),
            lambda: f"{ledger.outstanding(iteration, Work.EVALUATION)} held-out pictures of iteration {iteration}",
        )
        pictures = [
            (self._prompts[request.group], ledger.accepted(request.id))
            for request in ledger.iteration(iteration, Work.EVALUATION)
            if ledger.state(request.id) is SampleState.ACCEPTED
        ]
        # Before it is recorded: a run that stops here scores the same pictures again when it is resumed.
        check_any_scored(f"held-out pictures of iteration {iteration}", [one.reward for _, one in pictures], self._hub)
        self._emit(Evaluated(iteration=iteration, scores=_scores(pictures)))

    def _requests(self, iteration: int) -> list[Request]:
        sampling = self._settings.sampling(self._size)
        return [
            Request(
                work=Work.EVALUATION,
                iteration=iteration,
                group=number,
                sample=Sample(prompt=prompt.id, seed=number, sampling=sampling, version=Version(iteration)),
            )
            for number, prompt in enumerate(self._prompts)
        ]


def _scores(pictures: list[tuple[Prompt, Accepted]]) -> dict[str, tuple[float, float, float]]:
    """Figures of the pictures that have a reward; unscored ones are left out."""
    scored = [(prompt, one) for prompt, one in pictures if math.isfinite(one.reward)]
    if not scored:
        return {}
    names = sorted(set.intersection(*(set(one.components) for _, one in scored)) - {JUDGE})
    scores = Scores(
        total=np.array([one.reward for _, one in scored]),
        components={name: np.array([one.components[name] for _, one in scored]) for name in names},
    )
    figures = Evaluation(prompts=tuple(prompt for prompt, _ in scored), images=[], scores=(scores,)).figures()
    twice = [(prompt.id, one.components[JUDGE]) for prompt, one in scored if JUDGE in one.components]
    if twice:
        figures[JUDGE] = estimate(np.array([value for _, value in twice]), [prompt for prompt, _ in twice])
    return {name: (figure.value, figure.low, figure.high) for name, figure in figures.items()}
