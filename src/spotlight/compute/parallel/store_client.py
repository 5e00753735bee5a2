"""Client of the group store that the worker's agent hosts, as the `Store` of torch's process groups.

Invariant: every wait is bounded, and requests of an old token are refused (tests/unit/test_parallel_store.py). torch
calls these methods from C++ without the GIL, possibly from its own thread; a lock pairs requests and answers.
"""

import contextlib
import socket
import threading
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import Store  # type: ignore[attr-defined]

from spotlight.compute.parallel.store_wire import (
    HEADER,
    Add,
    Answer,
    Get,
    Late,
    Refusal,
    Request,
    Set,
    StoreError,
    StoreLate,
    StoreRefused,
    Value,
    answer_of,
    frame,
    length_of,
)
from spotlight.core.crew_messages import GroupToken

GRACE_S = 2.0
"""Wait for an answer beyond the request's timeout; the agent is on this machine, so no answer means that it died."""


class AgentStore(Store):
    """The keys of one token; values are cached, because a key is written once while a group forms."""

    def __init__(self, path: str, token: GroupToken, timeout_s: float = 0.3) -> None:
        super().__init__()
        self.token = token
        self._timeout_s = timeout_s
        self._values: dict[str, bytes] = {}
        self._lock = threading.Lock()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(GRACE_S)
            self._socket.connect(path)
        except OSError as error:
            self._socket.close()
            raise StoreError(
                f"group {token} cannot be formed, because no group store listens at {path} ({error}); the agent died "
                "or moved it: wait for its next order."
            ) from error

    def set(self, key: str, value: str | bytes) -> None:
        data = value if isinstance(value, bytes) else value.encode()
        self._values[key] = self._value(Set(self.token, key, data), 0.0)

    def get(self, key: str) -> bytes:
        if key not in self._values:
            self._values[key] = self._value(Get(self.token, key, self._timeout_s), self._timeout_s)
        return self._values[key]

    def add(self, key: str, amount: int) -> int:
        return int(self._value(Add(self.token, key, amount), 0.0))

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        timeout_s = self._timeout_s if timeout is None else timeout.total_seconds()
        for key in keys:
            if key not in self._values:
                self._values[key] = self._value(Get(self.token, key, timeout_s), timeout_s)

    def check(self, keys: Sequence[str]) -> bool:
        return all(not isinstance(self._request(Get(self.token, key, 0.0), 0.0), Late) for key in keys)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout_s = timeout.total_seconds()

    def has_extended_api(self) -> bool:
        return False

    def close(self) -> None:
        """Close the connection; a waiting thread fails."""
        with contextlib.suppress(OSError):  # the agent may have closed it already
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _value(self, request: Request, timeout_s: float) -> bytes:
        answer = self._request(request, timeout_s)
        if isinstance(answer, Value):
            return answer.value
        raise StoreLate(
            f"group {self.token} waited {timeout_s:g} s for '{request.key}', which a member writes when it joins; form "
            "the group without the missing member."
        )

    def _request(self, request: Request, timeout_s: float) -> Answer:
        with self._lock:
            try:
                self._socket.settimeout(min(timeout_s + GRACE_S, threading.TIMEOUT_MAX))
                self._socket.sendall(frame(request))
                answer = answer_of(self._exactly(length_of(self._exactly(HEADER.size))))
            except OSError as error:
                raise StoreError(
                    f"group {self.token} lost its store ({error or type(error).__name__}), because the agent died or "
                    "closed it; wait for its next order."
                ) from error
        if isinstance(answer, Refusal):
            raise StoreRefused(answer.problem)
        return answer

    def _exactly(self, count: int) -> bytes:
        parts = b""
        while len(parts) < count:
            part = self._socket.recv(count - len(parts))
            if not part:
                raise ConnectionResetError("the store closed the connection")
            parts += part
        return parts
