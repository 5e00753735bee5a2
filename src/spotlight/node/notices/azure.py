"""Azure: Scheduled Events of this virtual machine.

The service reports the events of a whole placement group to each of its machines, so events are filtered by the
machine's own name. The first call switches the service on, which may take 2 minutes. An event that leaves the list
while the machine is up was cancelled.
"""

import contextlib
import re

import msgspec

from spotlight.core.work import NoticeKind
from spotlight.node.notices.deadlines import Deadlines, wall_time
from spotlight.node.notices.metadata_http import MetadataClient, Reply
from spotlight.node.notices.notice import Notice, SourceFailed, WatchedSource

EVENTS = "/metadata/scheduledevents?api-version=2020-07-01"
NAME = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
HEADER = {"Metadata": "true"}
FIRST_CALL_S = 130.0
"""The first call may take 2 minutes."""
ENDING = {"Preempt": 30.0, "Terminate": 900.0, "Reboot": 900.0, "Redeploy": 600.0}
"""Types of events that end every process of the machine, with Azure's longest documented warning in seconds; a later
deadline is a clock error. Freeze pauses the machine for seconds."""
STARTED = "Started"


class _Event(msgspec.Struct, rename="pascal"):
    event_id: str
    event_type: str
    event_status: str = ""
    resources: list[str] = []
    not_before: str = ""
    """Empty for an event that has started."""


class _Document(msgspec.Struct, rename="pascal"):
    document_incarnation: int
    events: list[_Event]


class ScheduledEvents(WatchedSource):
    """The nearest event that ends this machine."""

    def __init__(self, client: MetadataClient, pause_s: float, approve: bool = False) -> None:
        """`approve` starts an event one poll after it is seen. It is off by default: Azure deletes an approved machine
        at once, and workers use the time until NotBefore to finish and commit their samples."""
        self.name = "azure"
        self.pause_s = pause_s
        self._client = client
        self._approve = approve
        self._unapproved: list[str] = []
        self._machine = ""
        self._incarnation: int | None = None
        self._deadlines: dict[str, Deadlines] = {}
        """By event."""
        self._notice: Notice | None = None

    async def poll(self) -> Notice | None:
        if self._unapproved:
            await self._start(self._unapproved)
        if not self._machine:
            self._machine = machine_name(await self._get(NAME))
        reply = await self._get(EVENTS, FIRST_CALL_S if self._incarnation is None else 0.0)
        try:
            document = msgspec.json.decode(reply.body, type=_Document)
            if document.document_incarnation != self._incarnation:
                events = [event for event in document.events if self._ends_this(event)]
                self._notice = self._nearest(events, reply)
                waiting = [event.event_id for event in events if event.event_status != STARTED]
                self._unapproved = waiting if self._approve else []
                self._incarnation = document.document_incarnation
        except (msgspec.MsgspecError, ValueError) as error:
            raise SourceFailed(f"Scheduled Events replied {reply.text[:80]!r}: {error}") from error
        return self._notice

    async def _get(self, path: str, wait_s: float = 0.0) -> Reply:
        reply = await self._client.get(path, HEADER, wait_s)
        if reply.status != 200 or not reply.body:
            raise SourceFailed(
                f"GET {self._client.url}{path} replied with status {reply.status} and {len(reply.body)} bytes"
            )
        return reply

    def _ends_this(self, event: _Event) -> bool:
        own = self._machine.lower()
        return event.event_type in ENDING and any(name.lower() == own for name in event.resources)

    def _nearest(self, events: list[_Event], reply: Reply) -> Notice | None:
        if not events:
            return None
        if any(event.event_status == STARTED or not event.not_before for event in events):
            announced = self._notice.deadline if self._notice else None
            deadline = reply.now if announced is None else min(announced, reply.now)
        else:
            deadline = min(self._deadline(event, reply) for event in events)
        return Notice(kind=NoticeKind.IMMINENT, source=self.name, deadline=deadline)

    def _deadline(self, event: _Event, reply: Reply) -> float:
        known = self._deadlines.setdefault(event.event_id, Deadlines(ENDING[event.event_type]))
        return known.monotonic(wall_time(event.not_before), reply)

    async def _start(self, events: list[str]) -> None:
        """Approve events. A failure must not hide the events: the next poll tries again. Azure refuses events that are
        gone, and the next document is without them."""
        body = msgspec.json.encode({"StartRequests": [{"EventId": event} for event in events]})
        with contextlib.suppress(SourceFailed):
            reply = await self._client.send("POST", EVENTS, HEADER, body)
            self._unapproved = self._unapproved if reply.status >= 500 else []


def machine_name(reply: Reply) -> str:
    """Name of this machine in Resources of events."""
    if not re.fullmatch(r"[\w.-]{1,80}", reply.text):
        raise SourceFailed(f"{NAME} has the content {reply.text[:80]!r}, which is not the name of a machine")
    return reply.text


def azure_sources(client: MetadataClient, poll_s: float, approve: bool = False) -> list[WatchedSource]:
    """Scheduled Events of this machine; ScheduledEvents says why `approve` is off."""
    return [ScheduledEvents(client, poll_s, approve)]
