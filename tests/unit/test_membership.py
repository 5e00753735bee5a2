"""A worker's place in a crew, order by order: its messages, when it pauses, and what it refuses."""

from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import msgspec
import pytest

from spotlight.compute.parallel.crew_adapter import StaleForward
from spotlight.compute.parallel.group import CrewBroken
from spotlight.core.crew_messages import (
    Broke,
    Disband,
    Disbanded,
    Form,
    Formed,
    Forward,
    GroupToken,
    Prepare,
    Prepared,
)
from spotlight.core.errors import WeightsError
from spotlight.core.types import NodeId, Size, Version, WorkerId
from spotlight.core.work import WeightsId
from spotlight.node.crew_links import CrewLinks
from spotlight.node.membership import Connect, CrewProblem, Membership

LEADER, FOLLOWER = WorkerId("spot-1.1/0.1"), WorkerId("spot-1.1/1.1")
MEMBERS = (LEADER, FOLLOWER)
WEIGHTS = WeightsId(Version(3))
PATIENCE_S = 12.0


def token(epoch: int) -> GroupToken:
    return GroupToken(NodeId("spot-1.1"), epoch)


def forward(epoch: int) -> Forward:
    return Forward(
        token=token(epoch),
        number=0,
        weights=WEIGHTS,
        digest="d",
        rows=1,
        tokens=1,
        channels=1,
        text_width=1,
        text_dimension=1,
        size=Size(4, 4),
    )


@dataclass
class Shared:
    """Stands for the adapter: records its group, and fails if the test sets a problem."""

    group: object = None
    followed: int = 0
    problem: Exception | None = None

    def bind(self, group):
        self.group = group

    def follow(self, forward, held_digest):
        if self.problem is not None:
            raise self.problem
        self.followed += 1


@dataclass
class Work:
    """Stands for engine and resident."""

    samples: tuple = ()
    weights: tuple = (WEIGHTS,)
    used: list = field(default_factory=list)

    def progress(self):
        return self.samples

    def held(self):
        return ((WEIGHTS, "d"),)

    def digest_of(self, weights):
        return "d"

    @contextmanager
    def use(self, weights, is_exact=True):
        self.used.append((weights, is_exact))
        yield


@dataclass
class Member:
    me: WorkerId = FOLLOWER
    samples: tuple = ()
    refusal: Exception | None = None
    now: float = 0.0
    sent: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = Shared()
        self.work = work = Work(self.samples)
        self.links = CrewLinks(work, work, self.shared, self._connect)
        self.membership = Membership(self.me, self.links, self.sent.append, PATIENCE_S, lambda: self.now)

    def _connect(self, token, members, rank, store):
        if self.refusal is not None:
            raise self.refusal
        return (token, rank)

    def apply(self, *orders) -> None:
        for order in orders:
            life, completion = self.membership.apply(order), None
            with suppress(StopIteration):
                while True:
                    effect = life.send(completion)
                    if isinstance(effect, Connect):
                        completion = self.links.connect(effect.order, effect.rank)
                    else:
                        completion = self.links.follow(effect.forward)

    def joined(self, epoch: int = 1) -> None:
        self.apply(
            Prepare(token=token(epoch), members=MEMBERS), Form(token=token(epoch), members=MEMBERS, store="store")
        )


def test_prepared_worker_pauses_until_the_group_is_formed():
    member = Member()
    member.apply(Prepare(token=token(1), members=MEMBERS))
    assert isinstance(member.sent[-1], Prepared)
    assert member.sent[-1].holds == ((WEIGHTS, "d"),)
    assert member.membership.seconds_paused() == PATIENCE_S
    assert member.membership.degree == 1
    member.apply(Form(token=token(1), members=MEMBERS, store="store"))
    assert member.sent[-1] == Formed(token=token(1))
    assert member.membership.seconds_paused() == 0.0
    assert member.membership.degree == 2
    assert member.shared.group == (token(1), 1)


def test_agent_that_sends_nothing_more_is_waited_for_no_longer_than_the_patience():
    member = Member()
    member.apply(Prepare(token=token(1), members=MEMBERS))
    member.now = PATIENCE_S
    assert member.membership.seconds_paused() == 0.0
    assert not member.membership.follows
    assert isinstance(member.sent[-1], Broke)


def test_order_to_form_that_comes_too_late_is_answered():
    member = Member()
    member.apply(Prepare(token=token(1), members=MEMBERS))
    member.now = PATIENCE_S
    member.membership.seconds_paused()
    member.apply(Form(token=token(1), members=MEMBERS, store="store"))
    assert [type(message) for message in member.sent] == [Prepared, Broke, Broke]
    assert member.membership.degree == 1


def test_worker_with_samples_leads_but_does_not_follow():
    follower = Member(samples=("in flight",))
    follower.apply(Prepare(token=token(1), members=MEMBERS))
    assert "1 samples in flight" in follower.sent[-1].problem
    assert not follower.membership.follows
    leader = Member(me=LEADER, samples=("in flight",))
    leader.apply(Prepare(token=token(1), members=MEMBERS))
    assert leader.sent[-1].problem == ""
    assert leader.sent[-1].needs == (WEIGHTS,)


def test_order_of_an_older_token_is_ignored_without_a_reply():
    member = Member()
    member.joined(epoch=5)
    before = list(member.sent)
    member.apply(
        Prepare(token=token(4), members=MEMBERS),
        Form(token=token(4), members=MEMBERS, store="store"),
        Disband(token=token(4)),
        forward(4),
    )
    assert member.sent == before
    assert member.membership.degree == 2
    assert member.shared.followed == 0


def test_group_that_cannot_be_formed_is_reported_and_leaves_the_worker_paused():
    member = Member(refusal=CrewBroken("no peer connected", waited_for=LEADER))
    member.joined()
    assert member.sent[-1] == Broke(token=token(1), problem="no peer connected", waited_for=LEADER)
    assert 0 < member.membership.seconds_paused() < PATIENCE_S


def test_collective_that_fails_drops_the_group_before_it_is_reported():
    member = Member()
    member.joined()
    member.shared.problem = CrewBroken("a peer closed its socket")
    member.apply(forward(1))
    assert member.shared.group is None
    assert member.sent[-1] == Broke(token=token(1), problem="a peer closed its socket")
    assert member.membership.degree == 1


def test_follower_without_the_leaders_weights_breaks_the_crew_instead_of_mixing_two_models():
    member = Member()
    member.joined()
    member.shared.problem = WeightsError("digest is another")
    member.apply(forward(1))
    assert isinstance(member.sent[-1], Broke)


def test_follower_computes_with_rounded_weights_where_its_leader_does():
    """A forward whose halves use two kinds of weights would give the picture of neither."""
    member = Member()
    member.joined()
    member.apply(msgspec.structs.replace(forward(1), is_exact=False), forward(1))
    assert member.work.used == [(WEIGHTS, False), (WEIGHTS, True)]


def test_forward_that_the_adapter_finds_stale_changes_nothing():
    member = Member()
    member.joined()
    member.shared.problem = StaleForward("an older forward")
    before = list(member.sent)
    member.apply(forward(1))
    assert member.sent == before
    assert member.membership.degree == 2


def test_broken_worker_is_prepared_for_the_next_token_at_once():
    member = Member()
    member.joined(1)
    member.membership.broke(CrewProblem("gone"))
    member.joined(2)
    assert member.sent[-1] == Formed(token=token(2))
    assert member.membership.degree == 2


@pytest.mark.parametrize("is_broken", [False, True])
def test_disbanded_worker_stands_alone_at_once(is_broken):
    member = Member()
    member.joined()
    if is_broken:
        member.membership.broke(CrewProblem("gone"))
    member.apply(Disband(token=token(1)))
    assert member.membership.seconds_paused() == 0.0
    assert not member.membership.follows
    assert member.shared.group is None
    assert member.sent[-1] == Disbanded(token=token(1))
