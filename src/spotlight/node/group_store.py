"""The key-value store over which the members of a crew find each other; it lives in the node's agent.

    open(token) -> [members set and get keys] -> close(token): keys dropped, waiters woken with a refusal

Invariant: only tokens that are open are served, so that a zombie of an old epoch can neither read nor write; memory is
bounded in tokens, keys and bytes (tests/unit/test_parallel_store.py). Nothing here loads torch, and nothing blocks the
agent's loop; a reader that waits for a key is woken by its writer, by `close`, or by its own timeout.
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
"""Tokens open at a time: a node has at most 16 slots, each in one crew that serves and one that forms."""
KEYS_LIMIT = 1024
"""Keys of one token: gloo writes one per member, NCCL a few."""
WAIT_LIMIT_S = 60.0
"""The longest wait that a reader may ask for; groups form in milliseconds."""


@dataclass
class _Room:
    """What the members of one group have written, and who waits for more."""

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
    """A server on a unix socket; all methods belong to the loop that started it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rooms: dict[GroupToken, _Room] = {}
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_unix_server(self._serve, path=str(self.path), limit=FRAME_LIMIT)

    async def stop(self) -> None:
        """Refuse everybody and let go of the socket."""
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
        """Forget its keys and refuse it for ever; nothing happens if it is not open."""
        room = self._rooms.pop(token, None)
        if room is None:
            return
        for key in tuple(room.waiters):
            room.wake(key, _refusal(token))

    @property
    def tokens(self) -> tuple[GroupToken, ...]:
        """Those that are served, in order."""
        return tuple(sorted(self._rooms))

    @property
    def keys(self) -> int:
        """How many keys are kept, over all tokens."""
        return sum(len(room.values) for room in self._rooms.values())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            # A worker that is killed in the middle of a frame, and one that sends no frame of ours, both end here.
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
            f"'{key}' was not kept, because its group has {KEYS_LIMIT} keys already, far more than one needs to form; "
            "disband it."
        )
    room.put(key, value)
    return Value(value)


def _added(room: _Room, key: str, amount: int) -> Answer:
    try:
        total = int(room.values.get(key, b"0")) + amount
    except ValueError:
        return Refusal(f"{amount} cannot be added to '{key}', because that is no number; give the counter its own key.")
    return _written(room, key, str(total).encode())


def _refusal(token: GroupToken) -> Refusal:
    return Refusal(
        f"group {token} is refused by its store, because it neither forms nor serves any more; drop it and wait for "
        "the agent's next order."
    )
