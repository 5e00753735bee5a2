"""Joined notices of several sources, against all orders of notices and withdrawals."""

import math

import hypothesis.strategies as st
from hypothesis import given

from spotlight.core.work import NoticeKind
from spotlight.node.notices.joined import SAME_S, JoinedNotices
from spotlight.node.notices.notice import Notice

SOURCES = st.sampled_from(["aws", "azure", "sigterm"])
NOTICES = st.one_of(
    st.builds(Notice, kind=st.just(NoticeKind.IMMINENT), source=SOURCES, deadline=st.floats(0, 10)),
    st.builds(Notice, kind=st.just(NoticeKind.ADVISORY), source=SOURCES),
    st.builds(Notice, kind=st.just(NoticeKind.ADVISORY), source=SOURCES, withdrawn=st.just(True)),
)


@given(st.lists(NOTICES, max_size=12))
def test_what_is_announced_is_the_most_severe_notice_in_force_and_the_nearest_deadline(changes: list[Notice]) -> None:
    joined, in_force, announced = JoinedNotices(), {}, None
    for notice in changes:
        in_force[notice.source] = None if notice.withdrawn else notice
        change = joined.update(notice)
        if change is not None:
            assert change != announced, "a change changes something"
            announced = None if change.withdrawn else change
        held = [each for each in in_force.values() if each is not None]
        imminent = [each.deadline for each in held if each.kind is NoticeKind.IMMINENT]
        expected = NoticeKind.IMMINENT if imminent else NoticeKind.ADVISORY if held else None
        assert (announced.kind if announced else None) is expected
        if imminent:
            assert math.isclose(announced.deadline, min(imminent), abs_tol=SAME_S)
