"""Key-value store through which the members of a crew connect; it runs in the node's agent.

    open(token) -> [members set and get keys] -> close(token): keys dropped, waiters woken with a refusal

Invariants (tests/unit/test_parallel_store.py): only open tokens are served, so a zombie of an old epoch can neither
read nor write; memory is bounded in tokens, keys and bytes. A reader that waits for a key is woken by its writer, by
`close`, or by its own timeout. Free of torch; no call blocks the agent's loop.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field
from pathlib import Path

from spotlight.compute.parallel.store_wire import (
    FRAME_LIMIT,
    HEADER,
    Add,
    Answer,
    Get,
    Late,
    Refusal,
    Request,
    Set,
    StoreError,
    Value,
    frame,
    length_of,
    request_of,
)
from spotlight.core.crew_messages import GroupToken

OPEN_LIMIT = 64
"""Tokens open at a time: a node has at most 16 slots, each in one serving crew and one forming crew."""
KEYS_LIMIT = 1024
"""Keys per token: gloo writes one per member, NCCL a few."""
WAIT_LIMIT_S = 60.0
"""Longest wait that a reader may request; groups form in milliseconds."""


@dataclass
class _Room:
    """Keys written by the members of one group, and the readers that wait for missing keys."""

    values: dict[str, bytes] = field(default_factory=dict)
    waiters: dict[str, list[asyncio.Future[Answer]]] = field(default_factory=dict)

    def put(self, key: str, value: bytes) -> None:
        self.values[key] = value
        self.wake(key, Value(value))

    def wake(self, key: str, answer: Answer) -> None:
        for waiter in self.waiters.pop(key, ()):
            if not waiter.done():
                waiter.set_result(answer)


class GroupStore:
    """Server on a unix socket; call its methods only from the event loop that started it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rooms: dict[GroupToken, _Room] = {}
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path=str(self.path), limit=FRAME_LIMIT)

    async def stop(self) -> None:
        """Close every token, disconnect all clients and remove the socket."""
        for token in sorted(self._rooms):
            self.close(token)
        if self._server is not None:
            self._server.close()
            self._server = None
        for client in tuple(self._clients):
            client.cancel()
        await asyncio.gather(*self._clients, return_exceptions=True)
        self.path.unlink(missing_ok=True)

    def open(self, token: GroupToken) -> None:
        """Serve this token from now on; it must be new."""
        if token in self._rooms or len(self._rooms) >= OPEN_LIMIT:
            raise StoreError(
                f"group {token} cannot be opened, because {'it is open' if token in self._rooms else 'none was closed'}"
                f" ({len(self._rooms)} of at most {OPEN_LIMIT} are open); close tokens that no longer form or serve."
            )
        self._rooms[token] = _Room()

    def close(self, token: GroupToken) -> None:
        """Drop the token's keys and refuse it from now on; a no-op if it is not open."""
        room = self._rooms.pop(token, None)
        if room is None:
            return
        for key in tuple(room.waiters):
            room.wake(key, _refusal(token))

    @property
    def tokens(self) -> tuple[GroupToken, ...]:
        """Open tokens, sorted."""
        return tuple(sorted(self._rooms))

    @property
    def keys(self) -> int:
        """Number of stored keys, over all tokens."""
        return sum(len(room.values) for room in self._rooms.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            # A worker killed in the middle of a frame and a client that sends malformed frames both end here.
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, StoreError):
                while True:
                    length = length_of(await reader.readexactly(HEADER.size))
                    request = request_of(await reader.readexactly(length))
                    writer.write(frame(await self._answer(request)))
                    await writer.drain()
        finally:
            self._clients.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _answer(self, request: Request) -> Answer:
        room = self._rooms.get(request.token)
        if room is None:
            return _refusal(request.token)
        match request:
            case Get(_, key, timeout_s):
                return Value(room.values[key]) if key in room.values else await self._wait(room, key, timeout_s)
            case Set(_, key, value):
                return _written(room, key, value)
            case Add(_, key, amount):
                return _added(room, key, amount)

    async def _wait(self, room: _Room, key: str, timeout_s: float) -> Answer:
        if timeout_s <= 0:
            return Late()
        waiter: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        room.waiters.setdefault(key, []).append(waiter)
        try:
            return await asyncio.wait_for(waiter, min(timeout_s, WAIT_LIMIT_S))
        except TimeoutError:
            return Late()
        finally:
            left = [other for other in room.waiters.get(key, ()) if other is not waiter]
            if left:
                room.waiters[key] = left
            else:
                room.waiters.pop(key, None)


def _written(room: _Room, key: str, value: bytes) -> Answer:
    if key not in room.values and len(room.values) >= KEYS_LIMIT:
        return Refusal(
            f"'{key}' was not stored: its group has {KEYS_LIMIT} keys already, far more than a group needs to form; "
            "disband the group."
        )
    room.put(key, value)
    return Value(value)


def _added(room: _Room, key: str, amount: int) -> Answer:
    try:
        total = int(room.values.get(key, b"0")) + amount
    except ValueError:
        return Refusal(f"{amount} cannot be added to '{key}': its value is no number; use a separate key as counter.")
    return _written(room, key, str(total).encode())


def _refusal(token: GroupToken) -> Refusal:
    return Refusal(
        f"group {token} is refused by the group store: it neither forms nor serves any more; drop the group and wait "
        "for the agent's next order."
    )
