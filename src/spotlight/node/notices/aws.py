"""AWS: the interruption notice and the rebalance recommendation of a spot instance, over IMDSv2.

Both paths reply 404 until there is something. They are two sources, so that a fault of one does not delay the other.
A token of IMDSv2 travels with every request; a container behind a bridge needs a hop limit of 2 to receive one.
"""

from collections.abc import Callable

import msgspec

from spotlight.core.work import NoticeKind
from spotlight.node.notices.deadlines import Deadlines, wall_time
from spotlight.node.notices.metadata_http import MetadataClient, Reply
from spotlight.node.notices.notice import Notice, SourceFailed, WatchedSource

TOKEN = "/latest/api/token"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TTL_S = 21600
"""Longest life of a token that IMDSv2 grants."""
RENEW = 0.9
"""Share of its life after which a token is renewed."""
ACTION = "/latest/meta-data/spot/instance-action"
REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
WARNING_S = 120.0
"""EC2 announces an interruption at most 2 minutes ahead; a later deadline is a clock error."""

NOW = 0.0
"""A wall time that is over."""


class _Interruption(msgspec.Struct):
    action: str
    time: str


class _Recommendation(msgspec.Struct, rename="camel"):
    notice_time: str


class Session:
    """Requests with a token, which is renewed before it expires and after a 401."""

    def __init__(self, client: MetadataClient) -> None:
        self._client = client
        self._token = ""
        self._renew_at = 0.0

    async def get(self, path: str) -> Reply:
        """Return the reply if its status is 200 or 404."""
        reply = await self._get(path)
        if reply.status == 401:
            self._token = ""
            reply = await self._get(path)
        if reply.status not in (200, 404):
            raise SourceFailed(f"GET {self._client.url}{path} replied with status {reply.status}")
        return reply

    async def _get(self, path: str) -> Reply:
        if not self._token or self._client.clock.now() >= self._renew_at:
            await self._renew()
        return await self._client.get(path, {TOKEN_HEADER: self._token})

    async def _renew(self) -> None:
        reply = await self._client.send("PUT", TOKEN, {TTL_HEADER: str(TTL_S)})
        token = reply.text
        if reply.status != 200 or not is_token(token):
            raise SourceFailed(f"PUT {self._client.url}{TOKEN} replied with status {reply.status} and no token")
        granted = reply.headers.get(TTL_HEADER.lower(), "")
        life_s = int(granted) if granted.isascii() and granted.isdigit() and len(granted) < 6 else TTL_S
        self._token = token
        self._renew_at = reply.now + RENEW * life_s


def is_token(text: str) -> bool:
    """Whether a body can be a token: one printable word."""
    return 0 < len(text) <= 1024 and text.isascii() and text.isprintable() and " " not in text


class Path(WatchedSource):
    """One path of the metadata service, polled."""

    def __init__(self, name: str, path: str, session: Session, pause_s: float) -> None:
        self.name = name
        self.pause_s = pause_s
        self._path = path
        self._session = session
        self._deadlines = Deadlines(WARNING_S)
        self._read: Callable[[Reply], Notice | None] = self._action if path == ACTION else self._recommendation

    async def poll(self) -> Notice | None:
        reply = await self._session.get(self._path)
        if reply.status == 404:
            return None
        try:
            return self._read(reply)
        except (msgspec.MsgspecError, ValueError) as error:
            raise SourceFailed(f"{self._path} has the content {reply.text[:80]!r}: {error}") from error

    def _action(self, reply: Reply) -> Notice | None:
        found = msgspec.json.decode(reply.body, type=_Interruption)
        if found.action == "none":
            return None
        # Hibernation has no warning: it begins at once.
        wall = NOW if found.action == "hibernate" else wall_time(found.time)
        deadline = self._deadlines.monotonic(wall, reply)
        return Notice(kind=NoticeKind.IMMINENT, source=self.name, deadline=deadline)

    def _recommendation(self, reply: Reply) -> Notice | None:
        # The time is that of the recommendation, and only proves that this is one; the loss has none.
        wall_time(msgspec.json.decode(reply.body, type=_Recommendation).notice_time)
        return Notice(kind=NoticeKind.ADVISORY, source=self.name)


def aws_sources(client: MetadataClient, poll_s: float) -> list[WatchedSource]:
    """Interruption notice and rebalance recommendation of this instance, which share one token."""
    session = Session(client)
    return [Path("aws", ACTION, session, poll_s), Path("aws-rebalance", REBALANCE, session, poll_s)]
