"""Client of an OpenAI-compatible vision endpoint: questions about pictures, each answered or RewardUnavailable.

A request that fails, is late or has an answer that cannot be parsed is sent again, after an exponential back-off with
jitter or after the endpoint's Retry-After. `circuit_breaker.py` stops requests to an endpoint that is down.

    200, parsed                         the answer
    400, 413, 422                       RewardError: the endpoint refuses this picture, now and later
    429                                 sent again; the endpoint is up
    408, 425, 5xx, no or a bad answer   sent again; a failure
    any other status                    RewardUnavailable at once; a failure

Invariant (tests/unit/test_endpoint_rewards.py): no failure becomes a score.
"""

import base64
import contextlib
import email.utils
import hashlib
import http.client
import io
import os
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from typing import Any, Generic, TypeVar

import msgspec
from PIL import Image as PilImage

from spotlight.compute.rewards.circuit_breaker import CircuitBreaker
from spotlight.compute.rewards.protocol import Image
from spotlight.core.errors import ConfigError, EnvironmentProblem, RewardError, RewardUnavailable
from spotlight.core.rng import Purpose, derive_key, generator

TIMEOUT_S = 30.0
PATIENCE_S = 120.0
"""Time within which the requests of one call begin; with the last request it stays below `reward.timeout_s`."""
FAILURES_ALLOWED, REST_S = 5, 30.0
"""Failures in a row that open the breaker, and its rest."""
LARGEST_ANSWER, SHOWN = 1 << 20, 200
"""Bytes of an answer that are read, and bytes of a bad one that an error shows."""
REMEMBERED = 64
"""Answers that are kept: if one picture of a batch fails, the others of the batch are not requested again."""
REFUSED, RETRIED = (400, 413, 422), (408, 425, 429)
BUSY = 429

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class EndpointConfig:
    """Where and how requests are sent."""

    url: str
    model: str
    key_variable: str = ""
    """Environment variable of the API key; empty for an endpoint without one."""
    timeout_s: float = TIMEOUT_S
    """Time limit of one request: of connecting, of every wait for bytes, and of the whole answer."""
    attempts: int = 4
    first_wait_s: float = 1.0
    """Wait after the first failure, doubled after each."""
    concurrency: int = 4
    """Requests under way at a time, in one reward process."""

    def __post_init__(self) -> None:
        if not _is_plain(self.url):
            raise ConfigError(
                "the url of a reward endpoint is not http://HOST/PATH or https://HOST/PATH without user, query and "
                "fragment, which could hold a key; write the address before /chat/completions, such as "
                "http://localhost:8000/v1, and name the variable of the key in key_variable."
            )
        if self.timeout_s <= 0 or self.attempts < 1 or self.concurrency < 1:
            raise ConfigError(
                f"a reward endpoint with timeout_s {self.timeout_s:g}, attempts {self.attempts} and concurrency "
                f"{self.concurrency} would never be asked; all three must be positive."
            )

    def headers(self) -> dict[str, str]:
        found = {"Content-Type": "application/json"}
        if self.key_variable:
            key = os.environ.get(self.key_variable, "").strip()
            if not key or not key.isascii() or not key.isprintable():
                raise EnvironmentProblem(
                    f"the environment variable {self.key_variable} does not hold an API key, but the reward endpoint "
                    f"{self.url} needs the one it names; export it before the run."
                )
            found["Authorization"] = f"Bearer {key}"
        return found


class _NoAnswer(Exception):
    """A request without a usable answer."""

    def __init__(self, problem: str, *, status: int = 0, wait_s: float | None = None) -> None:
        super().__init__(problem)
        self.status = status
        self.wait_s = wait_s
        """Wait that the endpoint asks for."""


class _Message(msgspec.Struct):
    content: str


class _Choice(msgspec.Struct):
    message: _Message


class _Completion(msgspec.Struct):
    choices: list[_Choice]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: it would send the key to another address."""

    def redirect_request(self, *_: Any) -> None:
        return None


class VisionEndpoint(Generic[Answer]):
    """Asks about pictures; `parse` turns an answer's text into a value, or raises msgspec.MsgspecError."""

    def __init__(
        self,
        config: EndpointConfig,
        parse: Callable[[str], Answer],
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._config, self._parse, self._clock, self._sleep = config, parse, clock, sleep
        self._headers = config.headers()
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._breaker = CircuitBreaker(FAILURES_ALLOWED, REST_S)
        self._lock = threading.Lock()
        self._remembered: dict[str, Answer] = {}

    def answers(self, questions: Sequence[str], images: Sequence[Image]) -> list[Answer]:
        """One answer per picture, in order; raises if one is missing."""
        last_start = self._clock() + PATIENCE_S
        with ThreadPoolExecutor(self._config.concurrency) as threads:
            pending = [threads.submit(self._answer, *each, last_start) for each in zip(questions, images, strict=True)]
            try:
                return [each.result() for each in pending]
            finally:
                threads.shutdown(wait=False, cancel_futures=True)

    def _answer(self, question: str, image: Image, last_start: float) -> Answer:
        body = _request_body(self._config.model, question, image)
        identity = hashlib.blake2b(body, digest_size=16).hexdigest()
        with self._lock:
            if identity in self._remembered:
                return self._remembered[identity]
        answer = self._requested(body, identity, last_start)
        with self._lock:
            if len(self._remembered) >= REMEMBERED:
                del self._remembered[next(iter(self._remembered))]
            self._remembered[identity] = answer
        return answer

    def _requested(self, body: bytes, identity: str, last_start: float) -> Answer:
        """Send the request until it is answered, within the attempts and the time."""
        problem, wait_s = "earlier requests failed or took too long", 0.0
        for attempt in range(self._config.attempts):
            if self._clock() + wait_s > last_start:
                raise self._unavailable(f"{problem}, and another request would begin after {PATIENCE_S:g} s")
            self._sleep(wait_s)
            if not self._breaker.allows(self._clock()):
                raise self._unavailable(f"{problem}, and no request is sent for up to {REST_S:g} s")
            try:
                answer = self._sent(body)
            except _NoAnswer as failure:
                problem, wait_s = str(failure), self._wait_after(failure, identity, attempt)
            else:
                self._breaker.answered()
                return answer
        raise self._unavailable(f"{problem}, after {self._config.attempts} attempts")

    def _wait_after(self, failure: _NoAnswer, identity: str, attempt: int) -> float:
        """Report a failure to the breaker; return the wait before the next attempt, or raise if there is none."""
        if failure.status in REFUSED:
            self._breaker.answered()
            raise RewardError(
                f"the reward endpoint {self._config.url} refuses this picture or prompt ({failure}), so it stays "
                "without a score; see the endpoint's rules and log."
            ) from failure
        if failure.status == BUSY:
            self._breaker.answered()
        else:
            self._breaker.failed(self._clock())
        if failure.status and failure.status not in RETRIED and failure.status < 500:
            raise self._unavailable(str(failure)) from failure
        if failure.wait_s is not None:
            return failure.wait_s
        jitter = generator(derive_key(Purpose.RETRY, 0, identity, attempt)).uniform(0.5, 1.0)
        return float(self._config.first_wait_s * 2**attempt * jitter)

    def _sent(self, body: bytes) -> Answer:
        """Send one request and parse its answer."""
        url = f"{self._config.url.rstrip('/')}/chat/completions"
        request = urllib.request.Request(url, body, self._headers, method="POST")
        deadline = self._clock() + self._config.timeout_s
        try:
            with self._opener.open(request, timeout=self._config.timeout_s) as response:
                content = self._read(response, deadline)
        except urllib.error.HTTPError as error:
            with error:
                raise _NoAnswer(
                    f"status {error.code} {error.reason} {_excerpt(error)}".strip(),
                    status=error.code,
                    wait_s=_retry_after(error.headers),
                ) from error
        except TimeoutError as error:
            raise _NoAnswer(f"no answer within {self._config.timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise _NoAnswer(f"{type(error).__name__}: {getattr(error, 'reason', error)}") from error
        try:
            text = msgspec.json.decode(content, type=_Completion).choices[0].message.content
            return self._parse(text)
        except (msgspec.MsgspecError, IndexError, RecursionError) as error:
            shown = content[:SHOWN].decode("utf-8", "replace")
            raise _NoAnswer(f"an answer that cannot be used ({error}): {shown}") from error

    def _read(self, response: http.client.HTTPResponse, deadline: float) -> bytes:
        """Read the body, whose bytes may each be in time and the whole late."""
        parts: list[bytes] = []
        while part := response.read1(1 << 16):
            parts.append(part)
            if self._clock() > deadline:
                raise TimeoutError
            if sum(map(len, parts)) > LARGEST_ANSWER:
                raise _NoAnswer(f"an answer of more than {LARGEST_ANSWER} bytes")
        return b"".join(parts)

    def _unavailable(self, problem: str) -> RewardUnavailable:
        return RewardUnavailable(
            f"the reward endpoint {self._config.url} gave no score ({problem}); check that it is up and serves the "
            f"model '{self._config.model}'."
        )


def _is_plain(url: str) -> bool:
    """Whether it is an http or https address without a part that could hold a key."""
    try:
        parts = urllib.parse.urlsplit(url)
        has_more = parts.username or parts.password or parts.query or parts.fragment or parts.port == 0
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and not has_more and url.isprintable()


def _request_body(model: str, question: str, image: Image) -> bytes:
    buffer = io.BytesIO()
    PilImage.fromarray(image).save(buffer, format="PNG")
    picture = f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
    content = [{"type": "text", "text": question}, {"type": "image_url", "image_url": {"url": picture}}]
    return msgspec.json.encode({"model": model, "temperature": 0, "messages": [{"role": "user", "content": content}]})


def _excerpt(error: urllib.error.HTTPError) -> str:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return error.read(SHOWN).decode("utf-8", "replace").strip()
    return ""


def _retry_after(headers: Message) -> float | None:
    """Seconds of a Retry-After header, which has a number or a date; None without a valid one."""
    value = headers.get("Retry-After", "").strip()
    if value.isdecimal():
        return float(value)
    try:
        return max(0.0, (email.utils.parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        # No date, or a date without a time zone.
        return None
