"""A link delivers each frame once and in order, wherever its connections are cut."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.core.link import ACKNOWLEDGE_EVERY, PING_S, SILENCE_S, KeptFrame, Link, LinkError, LinkState

DOING = st.lists(
    st.sampled_from(("up", "down", "read up", "read up", "read down", "read down", "cut", "twice", "resume")),
    max_size=120,
)


class End:
    """One end with what it has delivered, and the frames that are on the way to it."""

    def __init__(self) -> None:
        self.link: Link[bytes] = Link(0.0)
        self.delivered: list[bytes] = []
        self.arriving: deque[tuple[int, bytes, int]] = deque()
        self.sent: list[bytes] = []

    def send(self, other: "End") -> None:
        self.sent.append(b"%d" % len(self.sent))
        self._write(self.link.send(self.sent[-1], 1), other)

    def _write(self, frame: KeptFrame[bytes], other: "End") -> None:
        if self.link.state is LinkState.CONNECTED:
            other.arriving.append((frame.number, frame.content, self.link.received))

    def read(self) -> None:
        if self.arriving:
            number, message, received = self.arriving.popleft()
            if self.link.accept(number, received, 0.0):
                self.delivered.append(message)

    def resume(self, other: "End") -> None:
        for frame in self.link.resume(other.link.received, 0.0):
            self._write(frame, other)


def cut(ends: tuple[End, End]) -> None:
    for end in ends:
        end.arriving.clear()
        end.link.broke(0.0)


def resume(ends: tuple[End, End]) -> None:
    one, other = ends
    if one.link.state is LinkState.CONNECTED:
        return
    one.resume(other)
    other.resume(one)


@settings(max_examples=300)
@given(DOING)
def test_each_frame_is_delivered_once_and_in_order_wherever_connections_are_cut(doing: list[str]) -> None:
    agent, controller = ends = (End(), End())
    for what in doing:
        match what:
            case "up":
                agent.send(controller)
            case "down":
                controller.send(agent)
            case "read up":
                controller.read()
            case "read down":
                agent.read()
            case "cut":
                cut(ends)
            case "twice" if controller.arriving:
                controller.arriving.insert(1, controller.arriving[0])
            case "resume":
                resume(ends)
        assert controller.delivered == agent.sent[: len(controller.delivered)]
        assert agent.delivered == controller.sent[: len(agent.delivered)]
    resume(ends)
    while agent.arriving or controller.arriving:
        controller.read()
        agent.read()
    assert controller.delivered == agent.sent
    assert agent.delivered == controller.sent


def test_acknowledged_frames_are_no_longer_kept() -> None:
    agent, controller = End(), End()
    for _ in range(5):
        agent.send(controller)
    for _ in range(3):
        controller.read()
    assert agent.link.kept_bytes == 5
    controller.send(agent)
    agent.read()
    assert agent.link.kept_bytes == 2


def test_peer_of_another_life_is_refused() -> None:
    agent, controller = End(), End()
    agent.send(controller)
    controller.read()
    controller.send(agent)
    agent.read()
    agent.send(controller)
    for claimed in (0, 3):
        with pytest.raises(LinkError, match="another link"):
            agent.link.resume(claimed, 0.0)


def test_missing_frame_is_an_error_and_not_a_gap() -> None:
    link: Link[bytes] = Link(0.0)
    assert link.accept(1, 0, 0.0)
    with pytest.raises(LinkError, match="in between are lost"):
        link.accept(3, 0, 0.0)


def test_link_is_over_after_its_grace_and_not_before() -> None:
    link: Link[bytes] = Link(0.0, grace_s=20.0)
    link.broke(100.0)
    assert not link.is_over(119.9)
    assert link.is_over(120.0)
    link.resume(0, 119.9)
    assert not link.is_over(200.0)
    link.lose()
    with pytest.raises(LinkError, match="grace is over"):
        link.resume(0, 120.0)


def test_connection_is_silent_without_pings_and_pings_are_due_when_nothing_else_was_sent() -> None:
    link: Link[bytes] = Link(0.0)
    assert not link.owes_ping(PING_S / 2)
    assert link.owes_ping(PING_S)
    link.wrote(PING_S)
    assert not link.owes_ping(PING_S * 1.5)
    for number in range(1, ACKNOWLEDGE_EVERY + 1):
        link.accept(number, 0, PING_S)
    assert link.owes_ping(PING_S)
    assert not link.is_silent(PING_S + SILENCE_S * 0.9)
    assert link.is_silent(PING_S + SILENCE_S)
