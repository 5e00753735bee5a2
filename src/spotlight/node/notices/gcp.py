"""GCP: the keys `preempted` and `maintenance-event` of the metadata server, by long polls.

The first query of a key returns its value at once, with an ETag. Each next one waits for a value with another ETag, so
no change between two queries is missed. The server ends a wait after WAIT_S; a wait that it never ends is given up soon
after and followed by a plain query. Without an ETag the key is polled.

`preempted` has no time, so no clock can mislead: the shutdown follows at once, and processes are killed at most 30 s
later. Instances created with a preemption notice of 120 s have that time instead; `grace_s` says so.
"""

from urllib.parse import quote

from spotlight.core.work import NoticeKind
from spotlight.node.notices.metadata_http import MetadataClient, NoReply, Reply
from spotlight.node.notices.notice import Notice, SourceFailed, WatchedSource

ROOT = "/computeMetadata/v1/instance/"
PREEMPTED = "preempted"
MAINTENANCE = "maintenance-event"
FLAVOR = {"Metadata-Flavor": "Google"}
GRACE_S = 30.0
WAIT_S = 10
"""Whole seconds of a long poll; a hung connection hides a notice for this and the time limit of a request."""
PAUSE_S = 0.2
"""Between long polls, for a server that does not wait."""
PLAIN_S = 1.0
"""Between plain queries, for a server without ETags."""

KINDS: dict[str, dict[str, NoticeKind | None]] = {
    PREEMPTED: {"TRUE": NoticeKind.IMMINENT, "FALSE": None},
    MAINTENANCE: {
        "NONE": None,
        # The instance goes on elsewhere, after less than a second.
        "MIGRATE_ON_HOST_MAINTENANCE": None,
        # 60 s to 60 min later; `preempted` or SIGTERM announce the end.
        "TERMINATE_ON_HOST_MAINTENANCE": NoticeKind.ADVISORY,
    },
}


class Key(WatchedSource):
    """One key of the metadata server."""

    def __init__(self, name: str, key: str, client: MetadataClient, grace_s: float, wait_s: int = WAIT_S) -> None:
        self.name = name
        self.pause_s = PAUSE_S
        self._key = key
        self._client = client
        self._grace_s = grace_s
        self._wait_s = wait_s
        self._etag = ""
        self._notice: Notice | None = None

    async def poll(self) -> Notice | None:
        reply = await self._query()
        value = reply.text.upper()
        if value not in KINDS[self._key]:
            raise SourceFailed(
                f"{self._key} has the value {value[:40]!r}, which is none of {', '.join(KINDS[self._key])}"
            )
        self._etag = reply.headers.get("etag", "")
        self.pause_s = PAUSE_S if self._etag else PLAIN_S
        self._notice = self._announced(KINDS[self._key][value], reply)
        return self._notice

    async def _query(self) -> Reply:
        if not self._etag:
            return await self._get("")
        try:
            etag = quote(self._etag, safe="")
            query = f"?wait_for_change=true&timeout_sec={self._wait_s}&last_etag={etag}"
            return await self._get(query, self._wait_s)
        except NoReply:
            return await self._get("")

    async def _get(self, query: str, wait_s: float = 0.0) -> Reply:
        reply = await self._client.get(f"{ROOT}{self._key}{query}", FLAVOR, wait_s)
        if reply.status != 200:
            raise SourceFailed(f"GET {self._client.url}{ROOT}{self._key} replied with status {reply.status}")
        if not is_google(reply):
            raise SourceFailed(f"the reply of {self._client.url} has no header Metadata-Flavor: Google")
        return reply

    def _announced(self, kind: NoticeKind | None, reply: Reply) -> Notice | None:
        """The notice of a value; a value that has not changed keeps its deadline."""
        if kind is None or (self._notice is not None and self._notice.kind is kind):
            return self._notice if kind else None
        deadline = reply.now + self._grace_s if kind is NoticeKind.IMMINENT else None
        return Notice(kind=kind, source=self.name, deadline=deadline)


def is_google(reply: Reply) -> bool:
    """Whether GCP's metadata server replied, rather than another server at its address."""
    return reply.headers.get("metadata-flavor", "").lower() == "google"


def gcp_sources(client: MetadataClient, grace_s: float = GRACE_S, wait_s: int = WAIT_S) -> list[WatchedSource]:
    """Preemption and maintenance of this instance; `grace_s` is the time from a preemption to the loss."""
    keys = {"gcp": PREEMPTED, "gcp-maintenance": MAINTENANCE}
    return [Key(name, key, client, grace_s, wait_s) for name, key in keys.items()]
