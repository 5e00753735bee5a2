"""Any history of a ledger agrees with a model of plain dicts, with its own replay and with the audit."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from ledger_stories import BASE, W1, W2, grid, published, result, started, stepped, wanted

from spotlight.control.ledger import Ledger, SampleState
from spotlight.control.ledger.audit import Auditor
from spotlight.control.ledger.findings import Bounds
from spotlight.control.ledger.frontier import advance, is_trained, next_positions
from spotlight.core.events import AnyEvent, Record, RunResumed
from spotlight.core.types import Frontier
from spotlight.core.work import RefusalReason, ReleaseReason, Request, Work

places = st.integers(0, 40)


@given(st.lists(st.sets(places, max_size=6), max_size=8), st.sets(places), st.integers(0, 12))
def test_a_frontier_stands_for_exactly_the_places_trained(batches, claimed, count):
    frontier, model = Frontier(), set()
    for batch in batches:
        frontier = advance(frontier, batch - model)
        model |= batch
    assert {place for place in range(-1, 60) if is_trained(frontier, place)} == model
    assert frontier == advance(Frontier(), model)
    free = [place for place in range(200) if place not in model and place not in claimed]
    assert next_positions(frontier, count, claimed) == tuple(free[:count])


@dataclass
class Expected:
    """Model of one sample."""

    request: Request
    state: SampleState = SampleState.QUEUED
    attempt: int = 0
    worker: str | None = None
    results: list = field(default_factory=list)


class LedgerMachine(RuleBasedStateMachine):
    """Random operations on a ledger; every event is audited, and every rule is followed by a replay."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[AnyEvent] = []
        # Iterations are trained in any order here, so the lag of a sample is unbounded.
        self.auditor = Auditor(Bounds(max_lag=1 << 20))
        self.ledger = Ledger(self.record)
        self.model: dict[str, Expected] = {}
        self.trained: list[list[str]] = []
        self.issued_iterations = 0

    def record(self, event: AnyEvent) -> None:
        found = self.auditor.check(Record(len(self.events), float(len(self.events)), event))
        assert not found, found
        self.events.append(event)

    def of(self, *states: SampleState) -> list[Expected]:
        return [known for known in self.model.values() if known.state in states]

    @initialize()
    def start(self) -> None:
        self.record(started())

    # -- rules ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.of(SampleState.QUEUED, SampleState.LEASED)) < 12)
    @rule(groups=st.integers(1, 3), seeds=st.integers(1, 2), extra=st.sampled_from([None, Work.AUDIT, Work.EVALUATION]))
    def issue(self, groups: int, seeds: int, extra: Work | None) -> None:
        iteration = self.issued_iterations
        self.record(published(iteration, 0, BASE))
        requests = grid(groups, seeds, iteration=iteration, version=iteration)
        self.ledger.issue(requests, self.ledger.next_positions(groups))
        if extra is not None:
            version = 0 if extra is Work.EVALUATION else iteration
            requests.append(wanted(0, 9, iteration=iteration, work=extra, version=version))
            self.ledger.issue(requests[-1:])
        self.model.update({request.id: Expected(request) for request in requests})
        self.issued_iterations += 1

    @precondition(lambda self: self.of(SampleState.QUEUED))
    @rule(data=st.data(), worker=st.sampled_from([W1, W2]))
    def lease(self, data, worker) -> None:
        known = data.draw(st.sampled_from(self.of(SampleState.QUEUED)))
        known.attempt += 1
        known.state, known.worker = SampleState.LEASED, worker
        assert self.ledger.lease(known.request.id, worker) == known.attempt

    @precondition(lambda self: self.model)
    @rule(data=st.data(), attempt=st.integers(0, 4), reason=st.sampled_from(list(ReleaseReason)))
    def release_any_attempt(self, data, attempt, reason) -> None:
        known = data.draw(st.sampled_from(list(self.model.values())))
        live = known.state is SampleState.LEASED and known.attempt == attempt
        assert self.ledger.release(known.request.id, attempt, reason) is live
        if live:
            known.state, known.worker = SampleState.QUEUED, None

    @precondition(lambda self: self.of(SampleState.LEASED))
    @rule(data=st.data(), right=st.booleans())
    def finish(self, data, right) -> None:
        known = data.draw(st.sampled_from(self.of(SampleState.LEASED)))
        done = result(known.request.id, known.attempt, known.worker, BASE if right else "other")
        known.results.append(done)
        if right:
            assert self.ledger.accept(done, BASE) is None
            known.state = SampleState.ACCEPTED
        else:
            assert self.ledger.accept(done, BASE) is RefusalReason.WRONG_WEIGHTS
            known.state = SampleState.QUEUED
        known.worker = None

    @precondition(lambda self: any(known.attempt for known in self.model.values()))
    @rule(data=st.data(), worker=st.sampled_from([W1, W2]))
    def late_reply(self, data, worker) -> None:
        known = data.draw(st.sampled_from([known for known in self.model.values() if known.attempt]))
        attempt = data.draw(st.integers(1, known.attempt))
        if (known.state, known.attempt, known.worker) == (SampleState.LEASED, attempt, worker):
            return
        expected = {
            SampleState.QUEUED: RefusalReason.FENCED,
            SampleState.LEASED: RefusalReason.FENCED,
            SampleState.DROPPED: RefusalReason.UNKNOWN,
        }.get(known.state, RefusalReason.DUPLICATE)
        assert self.ledger.accept(result(known.request.id, attempt, worker), BASE) is expected

    @precondition(lambda self: self.of(SampleState.QUEUED, SampleState.LEASED, SampleState.ACCEPTED))
    @rule(data=st.data())
    def drop(self, data) -> None:
        known = data.draw(st.sampled_from(self.of(SampleState.QUEUED, SampleState.LEASED, SampleState.ACCEPTED)))
        self.ledger.drop(known.request.id, "dropped by the test")
        known.state, known.worker = SampleState.DROPPED, None

    @precondition(lambda self: self.of(SampleState.ACCEPTED))
    @rule(data=st.data())
    def reopen(self, data) -> None:
        known = data.draw(st.sampled_from(self.of(SampleState.ACCEPTED)))
        self.ledger.reopen(known.request.id, "file lost")
        known.state = SampleState.QUEUED

    @precondition(lambda self: self.trainable())
    @rule(data=st.data())
    def commit(self, data) -> None:
        ready = self.trainable()
        iteration = data.draw(st.sampled_from(sorted({key[0] for key in ready})))
        groups = [group for key, group in ready.items() if key[0] == iteration]
        chosen = [known for group in groups[: data.draw(st.integers(1, len(groups)))] for known in group]
        frontier = self.ledger.frontier_after([known.request.id for known in chosen])
        requests = [known.request for known in chosen]
        self.ledger.commit_step(
            stepped(len(self.trained), requests, frontier.position, frontier.holes, iteration=iteration)
        )
        for known in chosen:
            known.state = SampleState.TRAINED
        self.trained.append([known.request.id for known in chosen])

    @precondition(lambda self: self.trained)
    @rule(data=st.data())
    def restore(self, data) -> None:
        step = data.draw(st.integers(0, len(self.trained)))
        self.ledger.restore(step, "gang died")
        for requests in self.trained[step:]:
            for request in requests:
                self.model[request].state = SampleState.ACCEPTED
        del self.trained[step:]

    @rule()
    def crash_and_restart(self) -> None:
        self.ledger = Ledger.replay(self.events, self.record)
        self.record(RunResumed(attempt=1, wall=0.0))
        live = [known for known in self.model.values() if known.state is SampleState.LEASED]
        assert self.ledger.interrupt({}) == [known.request.id for known in live]
        for known in live:
            known.state, known.worker = SampleState.QUEUED, None

    def trainable(self) -> dict[tuple[int, int], list[Expected]]:
        """Survivors of the rollout groups in which every survivor is accepted."""
        groups: dict[tuple[int, int], list[Expected]] = {}
        for known in self.model.values():
            if known.request.work is Work.ROLLOUT and known.state is not SampleState.DROPPED:
                groups.setdefault((known.request.iteration, known.request.group), []).append(known)
        return {
            key: group for key, group in groups.items() if all(known.state is SampleState.ACCEPTED for known in group)
        }

    # -- invariants ----------------------------------------------------------------------------------------------------

    @invariant()
    def ledger_and_replay_agree_with_the_model(self) -> None:
        for ledger in (self.ledger, Ledger.replay(self.events)):
            for request, known in self.model.items():
                assert ledger.state(request) is known.state
                assert (ledger.attempt(request), ledger.holder(request)) == (known.attempt, known.worker)
            assert ledger.counts() == {state: len(self.of(state)) for state in SampleState}
            assert [request.id for request in ledger.queued()] == [k.request.id for k in self.of(SampleState.QUEUED)]
            assert ledger.steps == len(self.trained)
            for worker in (W1, W2):
                held = sorted(known.request.id for known in self.model.values() if known.worker == worker)
                assert ledger.leases_of(worker) == held
            self.check_iterations(ledger)

    def check_iterations(self, ledger: Ledger) -> None:
        waiting = self.of(SampleState.QUEUED, SampleState.LEASED)
        for iteration in range(self.issued_iterations):
            for work in Work:
                mine = [
                    known for known in waiting if (known.request.iteration, known.request.work) == (iteration, work)
                ]
                assert ledger.outstanding(iteration, work) == len(mine)
            rollouts = ledger.iteration(iteration, Work.ROLLOUT)
            for group in {request.group: 0 for request in rollouts}:
                members = [request.id for request in rollouts if request.group == group]
                assert ledger.group_complete(iteration, group) is all(
                    self.model[member].state not in (SampleState.QUEUED, SampleState.LEASED) for member in members
                )
                alive = [member for member in members if self.model[member].state is not SampleState.DROPPED]
                assert ledger.survivors(iteration, group) == alive

    @invariant()
    def frontier_and_claims_are_what_the_model_trained_and_issued(self) -> None:
        trained, claimed = set(), set()
        for iteration in range(self.issued_iterations):
            for group, place in enumerate(self.ledger.positions(iteration)):
                states = {self.model[request].state for request in self.ledger.survivors(iteration, group)}
                if states == {SampleState.TRAINED}:
                    trained.add(place)
                elif states:
                    claimed.add(place)
        assert self.ledger.frontier == advance(Frontier(), trained)
        assert self.ledger.next_positions(3) == next_positions(self.ledger.frontier, 3, claimed)


LedgerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLedger = LedgerMachine.TestCase
