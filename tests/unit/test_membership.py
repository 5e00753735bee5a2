"""A worker's place in a crew, order by order: what it says, when it holds still, and what it refuses."""

from contextlib import contextmanager
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
from spotlight.node.membership import Membership

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
    """Stands for the adapter: remembers its group, and fails where the story says so."""

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
class Story:
    me: WorkerId = FOLLOWER
    samples: tuple = ()
    refusal: Exception | None = None
    now: float = 0.0
    said: list = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shared = Shared()
        self.work = work = Work(self.samples)
        self.membership = Membership(
            self.me, self.shared, work, work, self.said.append, PATIENCE_S, self._connect, lambda: self.now
        )

    def _connect(self, token, members, rank, store):
        if self.refusal is not None:
            raise self.refusal
        return (token, rank)

    def apply(self, *orders) -> None:
        for order in orders:
            self.membership.apply(order)

    def joined(self, epoch: int = 1) -> None:
        self.apply(
            Prepare(token=token(epoch), members=MEMBERS), Form(token=token(epoch), members=MEMBERS, store="store")
        )


def test_prepared_worker_holds_still_until_the_group_is_formed():
    story = Story()
    story.apply(Prepare(token=token(1), members=MEMBERS))
    assert isinstance(story.said[-1], Prepared)
    assert story.said[-1].holds == ((WEIGHTS, "d"),)
    assert story.membership.seconds_paused() == PATIENCE_S
    assert story.membership.degree == 1
    story.apply(Form(token=token(1), members=MEMBERS, store="store"))
    assert story.said[-1] == Formed(token=token(1))
    assert story.membership.seconds_paused() == 0.0
    assert story.membership.degree == 2
    assert story.shared.group == (token(1), 1)


def test_agent_that_says_nothing_more_is_waited_for_no_longer_than_the_patience():
    story = Story()
    story.apply(Prepare(token=token(1), members=MEMBERS))
    story.now = PATIENCE_S
    assert story.membership.seconds_paused() == 0.0
    assert not story.membership.follows
    assert isinstance(story.said[-1], Broke)


def test_order_to_form_that_comes_too_late_is_answered():
    story = Story()
    story.apply(Prepare(token=token(1), members=MEMBERS))
    story.now = PATIENCE_S
    story.membership.seconds_paused()
    story.apply(Form(token=token(1), members=MEMBERS, store="store"))
    assert [type(word) for word in story.said] == [Prepared, Broke, Broke]
    assert story.membership.degree == 1


def test_worker_with_samples_leads_but_does_not_follow():
    follower = Story(samples=("in flight",))
    follower.apply(Prepare(token=token(1), members=MEMBERS))
    assert "1 samples in flight" in follower.said[-1].problem
    assert not follower.membership.follows
    leader = Story(me=LEADER, samples=("in flight",))
    leader.apply(Prepare(token=token(1), members=MEMBERS))
    assert leader.said[-1].problem == ""
    assert leader.said[-1].needs == (WEIGHTS,)


def test_order_of_an_older_token_is_refused_without_a_word():
    story = Story()
    story.joined(epoch=5)
    heard = list(story.said)
    story.apply(
        Prepare(token=token(4), members=MEMBERS),
        Form(token=token(4), members=MEMBERS, store="store"),
        Disband(token=token(4)),
        forward(4),
    )
    assert story.said == heard
    assert story.membership.degree == 2
    assert story.shared.followed == 0


def test_group_that_cannot_be_formed_is_told_and_leaves_the_worker_waiting():
    story = Story(refusal=CrewBroken("nobody came", waited_for=LEADER))
    story.joined()
    assert story.said[-1] == Broke(token=token(1), problem="nobody came", waited_for=LEADER)
    assert 0 < story.membership.seconds_paused() < PATIENCE_S


def test_collective_that_fails_drops_the_group_before_it_is_told():
    story = Story()
    story.joined()
    story.shared.problem = CrewBroken("a peer closed its socket")
    story.apply(forward(1))
    assert story.shared.group is None
    assert story.said[-1] == Broke(token=token(1), problem="a peer closed its socket")
    assert story.membership.degree == 1


def test_follower_without_the_leaders_weights_breaks_the_crew_instead_of_mixing_two_models():
    story = Story()
    story.joined()
    story.shared.problem = WeightsError("digest is another")
    story.apply(forward(1))
    assert isinstance(story.said[-1], Broke)


def test_follower_computes_with_rounded_weights_where_its_leader_does():
    """Halves of one forward with two kinds of weights would be neither's picture."""
    story = Story()
    story.joined()
    story.apply(msgspec.structs.replace(forward(1), is_exact=False), forward(1))
    assert story.work.used == [(WEIGHTS, False), (WEIGHTS, True)]


def test_forward_that_the_adapter_finds_stale_changes_nothing():
    story = Story()
    story.joined()
    story.shared.problem = StaleForward("of the past")
    heard = list(story.said)
    story.apply(forward(1))
    assert story.said == heard
    assert story.membership.degree == 2


def test_broken_worker_is_prepared_for_the_next_token_at_once():
    story = Story()
    story.joined(1)
    story.membership.broke(CrewBroken("gone"))
    story.joined(2)
    assert story.said[-1] == Formed(token=token(2))
    assert story.membership.degree == 2


@pytest.mark.parametrize("is_broken", [False, True])
def test_disbanded_worker_stands_alone_at_once(is_broken):
    story = Story()
    story.joined()
    if is_broken:
        story.membership.broke(CrewBroken("gone"))
    story.apply(Disband(token=token(1)))
    assert story.membership.seconds_paused() == 0.0
    assert not story.membership.follows
    assert story.shared.group is None
    assert story.said[-1] == Disbanded(token=token(1))
