"""Optimizer steps and publication, with recovery from lost gangs and controllers.

A step is committed when its record is in the journal. Steps may be taken while other samples of their iteration are
still rolled out, and are committed once it is compared. If a rank of the gang dies and another holds every step, the
next gang continues from there. If none does, or the controller dies, the gang is restored to the newest checkpoint, the
ledger takes the later steps back, and they are taken again from the kept tensors: the samples are neither lost nor
trained twice in the weights that survive. Crash windows are tested by name in tests/journeys.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from spotlight.control.directory import PublishedSet
from spotlight.control.ledger import SampleState
from spotlight.control.run_state import RunState
from spotlight.controller.gang import Gang, GangLost
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import Storage
from spotlight.controller.rollouts import Rollouts
from spotlight.controller.update import OptimizerSteps, Schedule, Taken
from spotlight.core.errors import Stopped
from spotlight.core.events import AnyEvent, Published
from spotlight.core.types import Version
from spotlight.core.work import Policy, Request, WeightsId, Work


class Training:
    """All orders to the gang but checkpoints."""

    def __init__(
        self,
        hub: Hub,
        gang: Gang,
        rollouts: Rollouts,
        state: RunState,
        storage: Storage,
        schedule: Schedule,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        self._hub = hub
        self._gang = gang
        self._rollouts = rollouts
        self._state = state
        self._storage = storage
        self._emit = emit
        self._updates = schedule.updates
        self._gap = schedule.pipeline.gap
        self._taker = OptimizerSteps(hub, gang, rollouts, schedule)
        self._taken: deque[Taken] = deque()
        """Steps that the gang holds and that are not in the journal yet."""

    async def ready(self) -> None:
        """Bring a gang to the ledger's step and publish the current weights."""
        await self.through(self._state.iterations_done - 1)
        ledger = self._hub.dispatcher.ledger
        version = ledger.steps // self._updates
        for before in [weights.version for weights in ledger.needed_weights() if weights.version < version]:
            await self.publish(before, Policy.BEHAVIOUR)
        await self.publish(version, Policy.BEHAVIOUR)

    def claim(self) -> None:
        """Give the gang no more other work before it has trained on the rollouts, which are in."""
        if not (self._gap and self._hub.dispatcher.assist.is_resting):
            self._gang.claim()

    @asynccontextmanager
    async def beside(self, iteration: int) -> AsyncIterator[None]:
        """Train the iteration after the block, or beside it with GAP; it is trained when this ends."""
        if not self._gap:
            yield
            await self.through(iteration)
            return
        if iteration not in self._state.compared:
            self._taker.expect(iteration * self._updates)
        training = asyncio.create_task(self._guarded(iteration))
        try:
            yield
            self._hub.flush()
            await training
        finally:
            training.cancel()
            await asyncio.gather(training, return_exceptions=True)

    async def _guarded(self, iteration: int) -> None:
        """Fail every waiter with an error of this task."""
        try:
            await self.through(iteration)
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            self._hub.fail(error)
            raise

    async def through(self, iteration: int) -> None:
        """Take and commit all steps up to this iteration's last; repeat when a gang dies."""
        while True:
            try:
                await self._recover()
                await self._steps(iteration)
                return
            except GangLost:
                continue

    async def _recover(self) -> None:
        """Bring a new gang to the steps taken so far, which a rank that lived on may hold in memory; if none does, to
        the newest checkpoint, and the ledger with it."""
        if not self._gang.is_restored():
            self._hub.dispatcher.assist.rest(self._hub.clock.now())
        ledger = self._hub.dispatcher.ledger
        held = ledger.steps + len(self._taken)
        if held % self._updates == 0:
            await self._gang.grow()
        if await self._gang.present():
            return
        source = self._gang.holder(held)
        if source is not None:
            await self._gang.restore(held, "", source)
            return
        checkpoint = self._state.checkpoint
        step, path = (checkpoint.step, checkpoint.path) if checkpoint is not None else (0, "")
        await self._gang.restore(step, path)
        self._taken.clear()
        if ledger.steps != step:
            ledger.restore(step, f"gang {self._gang.life} starts from the checkpoint of {step} steps")

    async def _steps(self, iteration: int) -> None:
        """Take steps and commit them once their iteration is compared, which may be later."""
        ledger, taken = self._hub.dispatcher.ledger, self._taken
        while (step := ledger.steps + len(taken)) < (iteration + 1) * self._updates:
            if step // self._updates in self._state.compared:
                await self._whole(step // self._updates)
            taken.append(await self._taker.take(step))
            self._commit()
        self._hub.dispatcher.assist.rest(self._hub.clock.now())
        while taken:
            await self._hub.until(lambda: taken[0].iteration in self._state.compared or not self._gang.is_restored())
            if not self._gang.is_restored():
                raise GangLost("the gang was lost with steps that were not committed")
            self._commit()

    def _commit(self) -> None:
        while self._taken and (compared := self._state.compared.get(self._taken[0].iteration)) is not None:
            self._taker.commit(self._taken.popleft(), compared)

    async def _whole(self, iteration: int) -> None:
        """Make rollouts again whose tensors were lost, after a restart, with weights that may be gone as well."""
        ledger, within_reach = self._hub.dispatcher.ledger, self._hub.dispatcher.directory.weights
        asked = ledger.needed_weights(iteration)
        # Weights of samples for the next iteration: later, no gang could publish this version any more.
        ahead = [w for w in ledger.needed_weights(iteration + 1) if w.version <= iteration and w not in within_reach]
        for weights in sorted({*asked, *ahead}):
            await self.publish(weights.version, Policy.BEHAVIOUR)
        if asked:
            self._hub.dispatcher.assist.rest(self._hub.clock.now())
            await self._rollouts.finished(iteration)

    async def write(self, version: int, policy: Policy) -> Published:
        """Write the weights into the run's folder unless they are there, and let the nodes fetch them; workers that do
        not train go on meanwhile."""
        weights = WeightsId(Version(version), policy)
        known = self._state.published.get(weights)
        while known is None or not self._storage.has_weights(weights, known.digest):
            try:
                await self.through(version - 1)
                self._check_reach(weights)
                self._forget(weights)
                (reply,) = await self._gang.publish((weights,))
            except GangLost:
                continue
            self._replace(weights, reply.digest)
            known = Published(weights=weights, digest=reply.digest, step=reply.step, size=reply.size)
            self._emit(known)
            self._hub.dispatcher.prefetch(weights, self._set(known))
            self._hub.flush()
        return known

    async def publish(self, version: int, policy: Policy) -> None:
        """Write the weights and announce them: each node fetches them once, and again after a restart."""
        known = await self.write(version, policy)
        keep = self._wanted(known.weights)
        self._hub.dispatcher.publish(known.weights, self._set(known), keep)
        self._hub.flush()
        self._storage.keep_weights([known.weights, *keep, *self._uncovered()])

    def _set(self, known: Published) -> PublishedSet:
        return PublishedSet(known.digest, self._storage.weights_path(known.weights), self._hub.clock.now())

    def _check_reach(self, weights: WeightsId) -> None:
        """Stop the run if the gang is past these weights: a gang publishes only what it holds."""
        steps = self._hub.dispatcher.ledger.steps
        if steps > weights.version * self._updates:
            raise Stopped(
                f"the weights {weights} are gone from {self._storage.weights_path(weights)}, samples are still to be "
                f"made with them, and the gang is past them with {steps} steps; put that file back and resume, or "
                "start a new run from the newest checkpoint."
            )

    def _uncovered(self) -> list[WeightsId]:
        """Sets of samples that no checkpoint covers: a lost sample is made again with the same weights.

        They cannot be published anew: a gang that takes a step again may differ in the last bits.
        """
        checkpoint = self._state.checkpoint
        first = checkpoint.step // self._updates if checkpoint is not None else 0
        stale = {request.weights for request in self._hub.dispatcher.ledger.iteration(first, Work.ROLLOUT)}
        return [known for known in self._state.published if known.version >= first or known in stale]

    def _replace(self, weights: WeightsId, digest: str) -> None:
        """Reopen samples of a set that was published again with other bits: no group may hold samples of both."""
        known = self._state.published.get(weights)
        if known is None or known.digest == digest:
            return
        ledger = self._hub.dispatcher.ledger
        unsettled = [request for request in ledger.unsettled(weights) if self._is_open(request)]
        if any(request.work is Work.ROLLOUT and request.iteration in self._state.compared for request in unsettled):
            raise Stopped(
                f"the weights {weights} ({known.digest}) are gone from {self._storage.weights_path(weights)} and came "
                f"out as {digest} when they were made again, but the advantages of their samples were computed with "
                "the first ones; put that file back and resume, or start a new run from the newest checkpoint."
            )
        stale = [request for request in unsettled if ledger.state(request.id) is SampleState.ACCEPTED]
        for request in stale:
            ledger.reopen(request.id, f"{weights} was published again with other bits")
        self._hub.dispatcher.requeue(stale, [])

    def _is_open(self, request: Request) -> bool:
        """Whether the outcome of the sample still matters."""
        match request.work:
            case Work.EVALUATION:
                return request.iteration not in self._state.evaluated
            case Work.AUDIT:
                return request.iteration not in self._state.compared
            case _:
                return True

    def _forget(self, weights: WeightsId) -> None:
        """Delete the file of a gang that died before it reported: the next gang's bytes may differ."""
        self._storage.keep_weights([known for known in self._state.published if known != weights])

    def _wanted(self, newest: WeightsId) -> list[WeightsId]:
        """Other sets that may still be needed: the newest of each policy, and those of unfinished samples.

        Those published may be old ones, for samples that are made again; the newest then stay for the next previews.
        """
        within_reach = self._hub.dispatcher.directory.weights
        others = sorted(w for w in within_reach if w.policy is not newest.policy)
        newer = sorted(w for w in within_reach if w.policy is newest.policy and w > newest)
        asked = [w for w in self._hub.dispatcher.ledger.needed_weights() if w in within_reach and w != newest]
        return sorted({*others[-1:], *newer[-1:], *asked})
