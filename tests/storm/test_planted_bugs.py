"""Each bug planted here into the real classes is caught by the storm of a seed in a small range.

The bugs are likely mistakes: a dropped check, a forgotten step, a reversed order. If a test here fails, the storms no
longer detect that bug.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from storm_bugs import Bugs

from spotlight.compute.rewards.reward_pool import RewardProcessDied
from spotlight.control.dispatch import Dispatcher
from spotlight.control.flights import Flights
from spotlight.control.ledger import Ledger, SampleState, ledger
from spotlight.control.pipeline import staleness as admission
from spotlight.control.run_state import RunState
from spotlight.control.scheduler.booking import Booking
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.control.setbacks import Setbacks
from spotlight.controller.gang import Gang, GangLost
from spotlight.controller.hub import Hub
from spotlight.controller.rollouts import Rollouts, Samples
from spotlight.controller.training import Training
from spotlight.core.blobs import BlobKind
from spotlight.core.events import Compared
from spotlight.core.types import Frontier
from spotlight.core.work import RefusalReason
from spotlight.node.term_judge import TermJudge, unscored
from spotlight.run_log import RunLog
from spotlight.sim import sim_node
from spotlight.sim.sim_trainer import SimTrainer
from spotlight.sim.storage import SimStorage

BUGS = Bugs()
caught_by = BUGS.caught_by


@caught_by(7)
def fence_check_dropped(patch: pytest.MonkeyPatch) -> None:
    """A late result of an older attempt is accepted as that of the live one."""
    refusal = ledger._refusal

    def unchecked(entry: Any, accepted: Any, expected: str | None) -> RefusalReason | None:
        found = refusal(entry, accepted, expected)
        return None if found is RefusalReason.FENCED and entry.state is SampleState.LEASED else found

    patch.setattr(ledger, "_refusal", unchecked)


@caught_by(6)
def cursor_advanced_at_issue(patch: pytest.MonkeyPatch) -> None:
    """Issued samples count as trained: the frontier is ahead."""
    issue = Ledger.issue

    def counting_early(self: Any, requests: Any, positions: Any = ()) -> None:
        issue(self, requests, positions)
        if positions:
            self._frontier = Frontier(max(positions) + 1)

    patch.setattr(Ledger, "issue", counting_early)


@caught_by(36)
def iteration_counted_when_compared(patch: pytest.MonkeyPatch) -> None:
    """A restart skips an iteration that was compared and never trained."""
    apply = RunState.apply

    def counting_early(self: RunState, event: Any) -> None:
        apply(self, event)
        if isinstance(event, Compared):
            self.iterations_done = event.iteration + 1

    patch.setattr(RunState, "apply", counting_early)


@caught_by(6)
def hand_back_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The flight is kept, but the request is not queued again."""
    patch.setattr(Scheduler, "hand_back", lambda *_, **__: True)


@caught_by(6)
def handed_back_step_ignored(patch: pytest.MonkeyPatch) -> None:
    """The next attempt resumes from a step whose flight was dropped."""
    serve = Dispatcher.serve

    def forgetting(self: Any, now: float) -> None:
        self.flights.keep_only(lambda request: False)
        serve(self, now)

    patch.setattr(Dispatcher, "serve", forgetting)


@caught_by(6)
def accepted_twice(patch: pytest.MonkeyPatch) -> None:
    """A second result of a finished sample is accepted."""
    refusal = ledger._refusal

    def unchecked(entry: Any, accepted: Any, expected: str | None) -> RefusalReason | None:
        found = refusal(entry, accepted, expected)
        return None if found is RefusalReason.DUPLICATE else found

    patch.setattr(ledger, "_refusal", unchecked)


@caught_by(6)
def release_on_loss_forgotten(patch: pytest.MonkeyPatch) -> None:
    """The leases of a dead worker are never released."""

    def forgetting(self: Any, worker: Any, reason: Any, now: float) -> list[Any]:
        self._workers.pop(worker, None)
        return []

    patch.setattr(Scheduler, "lose", forgetting)


@caught_by(6)
def restore_forgotten_after_gang_death(patch: pytest.MonkeyPatch) -> None:
    """A new gang is not restored: it holds none of the steps."""

    async def present_unrestored(self: Any) -> bool:
        await self._hub.until(self._is_present)
        self._restored = self.life
        return True

    patch.setattr(Gang, "present", present_unrestored)


@caught_by(6)
def steps_not_taken_back(patch: pytest.MonkeyPatch) -> None:
    """The gang restores a checkpoint, the ledger does not."""
    patch.setattr(Ledger, "restore", lambda self, step, reason: None)


@caught_by(6)
def checkpoint_counted_before_it_is_on_disk(patch: pytest.MonkeyPatch) -> None:
    """The order to save counts as its completion."""

    async def saved_at_once(self: Any, saving: Any) -> None:
        self._underway.remove(saving)

    patch.setattr(Gang, "saved", saved_at_once)


@caught_by(6)
def checkpoint_of_a_lost_gang_counted(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint may be complete, but the gang restored the one before it."""
    saved = Gang.saved

    async def unchecked(self: Any, saving: Any) -> None:
        with suppress(GangLost):
            await saved(self, saving)

    patch.setattr(Gang, "saved", unchecked)


@caught_by(6)
def snapshot_of_what_is_trained_meanwhile(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint has the state at the time of writing, not at the time of the order."""
    save, snapshot = SimTrainer.save, SimTrainer.snapshot
    patch.setattr(SimTrainer, "save", lambda self, order, taken: save(self, order, snapshot(self, order)))


@caught_by(3)
def payload_of_a_stale_attempt_kept(patch: pytest.MonkeyPatch) -> None:
    """The tensors of a late result overwrite the accepted ones."""
    stored = sim_node.stored_sample

    def under_one_name(result: Any, *rest: Any) -> Any:
        return stored(msgspec.structs.replace(result, attempt=0), *rest)

    patch.setattr(sim_node, "stored_sample", under_one_name)


@caught_by(6)
def accepted_before_its_payload_is_kept(patch: pytest.MonkeyPatch) -> None:
    """The acceptance is recorded before the tensors are written."""
    put, flush, pending = SimStorage.put, Hub.flush, []

    def put_later(self: SimStorage, kind: BlobKind, name: str, data: bytes) -> Any:
        ref = put(self, kind, name, data)
        if kind is BlobKind.PAYLOAD:
            pending.append((self, ref.path, self.files.pop(ref.path)))
        return ref

    def late(self: Hub) -> None:
        flush(self)
        while pending:
            storage, name, blob = pending.pop()
            storage.files[name] = blob

    patch.setattr(SimStorage, "put", put_later)
    patch.setattr(Hub, "flush", late)


@caught_by(3)
def weights_digest_not_checked(patch: pytest.MonkeyPatch) -> None:
    """A sample of other weights than the published ones is accepted."""
    accept = Ledger.accept
    patch.setattr(Ledger, "accept", lambda self, accepted, expected: accept(self, accepted, accepted.digest))


@caught_by(9)
def earlier_parts_of_a_flight_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Only the newest part of a flight is kept."""
    keep = Flights.keep

    def newest(self: Any, request: Any, step: int, blob: bytes, since: int = 0) -> None:
        keep(self, request, step, blob)

    patch.setattr(Flights, "keep", newest)


@caught_by(6)
def requeued_twice(patch: pytest.MonkeyPatch) -> None:
    """A request that is handed back is queued twice."""
    again = Booking._enqueue_again

    def twice(self: Any, ticket: Any) -> None:
        again(self, ticket)
        self._queue(ticket).push(ticket)
        self.waiting += 1

    patch.setattr(Booking, "_enqueue_again", twice)


@caught_by(6)
def compared_anew_after_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Advantages are computed again with a later running std."""
    compare = Rollouts.compare

    def anew(self: Any, iteration: int) -> Compared:
        self._state.compared.pop(iteration, None)
        return compare(self, iteration)

    patch.setattr(Rollouts, "compare", anew)


@caught_by(3)
def file_of_a_dead_gang_published(patch: pytest.MonkeyPatch) -> None:
    """Weights that a dead gang wrote and never reported stay, and those of the next gang are refused."""
    patch.setattr(Training, "_forget", lambda self, weights: None)


@caught_by(6)
def group_drawn_half_with_old_and_half_with_new_weights(patch: pytest.MonkeyPatch) -> None:
    """Half of a stale group is drawn with the new weights."""
    exact = Samples.exact

    def mixed(self: Any, work: Any, iteration: int, group: int, prompt: Any, seeds: Any, version: int) -> list[Any]:
        half = len(seeds) // 2
        old = exact(self, work, iteration, group, prompt, seeds[:half], version)
        return [*old, *exact(self, work, iteration, group, prompt, seeds[half:], iteration)]

    patch.setattr(Samples, "exact", mixed)


@caught_by(6)
def stale_group_carried_over_an_iteration(patch: pytest.MonkeyPatch) -> None:
    """Stale groups have weights that are two versions old."""
    exact = Samples.exact

    def older(self: Any, work: Any, iteration: int, group: int, prompt: Any, seeds: Any, version: int) -> list[Any]:
        return exact(self, work, iteration, group, prompt, seeds, max(0, version - (version < iteration)))

    patch.setattr(Samples, "exact", older)


@caught_by(6)
def stale_share_ignored(patch: pytest.MonkeyPatch) -> None:
    """Groups are admitted while slots are idle, without a limit."""
    patch.setattr(admission, "most_stale", lambda groups, share: groups)


@caught_by(6)
def old_weights_dropped_when_new_ones_are_published(patch: pytest.MonkeyPatch) -> None:
    """The weights of stale samples in flight are removed."""

    def newest_only(self: Any, newest: Any) -> list[Any]:
        known = self._hub.dispatcher.directory.weights
        return sorted(weights for weights in known if weights.policy is not newest.policy)[-1:]

    patch.setattr(Training, "_wanted", newest_only)


@caught_by(6)
def stale_groups_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """Stale groups are issued again with the rest of the iteration."""
    patch.setattr(Rollouts, "issued_groups", lambda self, iteration: set())


@caught_by(6)
def picture_of_a_killed_reward_process_left_unscored(patch: pytest.MonkeyPatch) -> None:
    """The first failure leaves the sample unscored, on the node and at the controller."""

    async def fail_at_once(self: Any, process: Any, item: Any) -> Any:
        raise RewardProcessDied("it died")

    patch.setattr(TermJudge, "_alone", fail_at_once)
    patch.setattr(Setbacks, "unscored", lambda self, request, problem: False)


@caught_by(6)
def pictures_of_an_unavailable_reward_given_up(patch: pytest.MonkeyPatch) -> None:
    """A picture stays unscored instead of waiting, on the node and at the controller."""

    def give_up(self: Any, case: Any, error: Any) -> None:
        if not case.verdict.done():
            case.verdict.set_result(unscored("the reward is down"))

    patch.setattr(TermJudge, "_postpone", give_up)
    patch.setattr(Setbacks, "unscored", lambda self, request, problem: False)


@caught_by(9)
def scales_of_several_rewards_forgotten_by_a_restart(patch: pytest.MonkeyPatch) -> None:
    """The lagged std of each reward is not part of what the journal restores."""
    replay = RunLog._restore

    def forgetting(self: Any) -> None:
        replay(self)
        self.state.lagged_terms.clear()

    patch.setattr(RunLog, "_restore", forgetting)


@caught_by(6)
def meter_not_kept_up_to_date(patch: pytest.MonkeyPatch) -> None:
    """The meter omits slot time after it was first read."""
    fold = RunLog._fold

    def forgetting(self: Any, record: Any) -> None:
        meter, self._meter = self._meter, None
        fold(self, record)
        self._meter = meter

    patch.setattr(RunLog, "_fold", forgetting)


@caught_by(3)
def rank_of_any_step_taken_for_the_source(patch: pytest.MonkeyPatch) -> None:
    """A new gang continues from a surviving rank whatever step it holds."""
    patch.setattr(Gang, "holder", lambda self, step: 0 if any(self._held.values()) else None)


@caught_by(6)
def survivors_not_brought_together(patch: pytest.MonkeyPatch) -> None:
    """A new gang trains at once, though its new rank is at the base model."""
    restore = Gang.restore

    async def skipping(self: Any, step: int, path: str, source: int | None = None) -> None:
        if source is None or not step:
            await restore(self, step, path, source)
        else:
            self._restored = self.life

    patch.setattr(Gang, "restore", skipping)


@pytest.mark.parametrize("name", BUGS)
def test_planted_bug_is_caught_by_some_seed(
    name: str, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    record_property("caught by", BUGS.caught(name, monkeypatch))
