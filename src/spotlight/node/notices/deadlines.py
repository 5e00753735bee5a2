"""Wall-clock deadlines of a cloud become monotonic times, once, on arrival.

The clock of this machine may be minutes off, as after a boot without NTP. The deadline comes from the cloud's clock,
and so does the reply's Date header: their difference is the time left, whatever this machine's wall clock says. Date is
cut to whole seconds, so the wall clock supplies the fraction if it agrees with Date; otherwise the latest time that
Date allows is assumed, which is at most 1 s and the round trip too late. Without Date only the wall clock is left.
Whatever clock is wrong, a deadline is never before the reply that brings it, and never later than `most_s` after it,
the longest warning that the cloud documents.
"""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from spotlight.node.notices.metadata_http import Reply

DATE_UNIT_S = 1.0


class Deadlines:
    """Converts one source's deadline; a repeated deadline gives the same monotonic time again."""

    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._wall = math.nan
        self._monotonic = math.nan

    def monotonic(self, deadline: float, reply: Reply) -> float:
        """Monotonic time of `deadline`, in seconds since 1970 by the cloud's clock; never before the reply."""
        if deadline != self._wall:
            left = deadline - server_wall(reply)
            self._wall = deadline
            self._monotonic = reply.now + min(max(left, 0.0), self._most_s)
        return self._monotonic


def server_wall(reply: Reply) -> float:
    """The server's wall clock at the arrival of the reply's headers."""
    try:
        date = wall_time(reply.headers["date"])
    except (KeyError, ValueError):
        return reply.wall
    latest = date + DATE_UNIT_S + reply.took_s
    return reply.wall if date <= reply.wall <= latest else latest


def wall_time(text: str) -> float:
    """Seconds since 1970 of an ISO 8601 time or an HTTP date; without a zone it is UTC. Raises ValueError."""
    try:
        moment = _moment(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except OverflowError as error:
        raise ValueError(f"{text[:40]!r} is outside the calendar") from error


def _moment(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return parsedate_to_datetime(text)
