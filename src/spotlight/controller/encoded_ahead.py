"""Encodes prompts ahead of the frontier, once each, so that no worker and no training order encodes one.

    iterations:   trained | this one, the next | soon      | later
    embeddings:   removed | awaited            | encoded beside training | removed where space is short

Invariant: while an iteration may be rolled out or trained, the embeddings of its prompts exist
(tests/unit/test_embeddings.py).
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.core.clock import Clock
from spotlight.core.events import AnyEvent, Encoded

NEEDED = 3
"""Iterations whose prompts must be encoded: this one, and those that previews and asynchrony take prompts of."""
SOON = 12
"""Iterations ahead of which encoding begins, beside training."""
GUESSED_BYTES = 4 * 2**20
"""Size of an embedding before the first one is written: that of the largest family."""


class Embeddings(Protocol):
    """The loop's view of the encoded prompts."""

    @property
    def progress(self) -> str:
        """What is being encoded, for people; empty if nothing is awaited."""

    async def ready(self, iteration: int) -> None:
        """Return when the prompts of this iteration and the next ones are encoded."""

    def close(self) -> None: ...


class NoEmbeddings:
    """For models without a text encoder."""

    progress = ""

    async def ready(self, iteration: int) -> None:
        return None

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class PromptTexts:
    """The texts of a run."""

    always: Sequence[str]
    """Held-out prompts, the negative prompt, the longest prompt."""
    of: Callable[[int], Sequence[str]]
    """Texts of an iteration's candidates."""
    iterations: int

    def between(self, first: int, stop: int) -> list[str]:
        texts = [text for iteration in range(first, min(stop, self.iterations)) for text in self.of(iteration)]
        return list(dict.fromkeys([*self.always, *texts]))


class EncodedAhead:
    """One encoder process at a time; it ends when its prompts are encoded, which releases the text encoders."""

    def __init__(
        self,
        folder: EmbeddingFolder,
        limit_bytes: int,
        texts: PromptTexts,
        oldest: Callable[[], int],
        encode: Callable[[Sequence[str], Callable[[str], None]], Awaitable[None]],
        clock: Clock,
        emit: Callable[[AnyEvent], None],
    ) -> None:
        """`oldest` returns the first iteration that may still be trained: that of the newest checkpoint."""
        self.progress = ""
        self._folder = folder
        self._limit = limit_bytes
        self._texts = texts
        self._oldest = oldest
        self._encode = encode
        self._clock = clock
        self._emit = emit
        self._task: asyncio.Task[None] | None = None

    async def ready(self, iteration: int) -> None:
        first = min(iteration, self._oldest())
        needed = self._texts.between(first, iteration + NEEDED)
        while self._folder.missing(needed):
            self._begin(first, iteration)
            assert self._task is not None
            await self._task
        self._collect()
        if self._task is None and self._folder.missing(self._window(first, iteration + SOON)):
            self._begin(first, iteration)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _begin(self, first: int, iteration: int) -> None:
        """Start to encode all that has room, unless that is under way."""
        self._collect()
        if self._task is None:
            window = self._window(first, self._texts.iterations)
            needed = self._texts.between(first, iteration + NEEDED)
            self._folder.trim(self._limit, {*window, *needed})
            missing = self._folder.missing([*needed, *window])
            self._task = asyncio.create_task(self._work(missing))

    def _window(self, first: int, stop: int) -> list[str]:
        """Texts of the iterations from `first` on, as many as the limit has room for."""
        room = max(1, self._limit // (self._folder.average_bytes() or GUESSED_BYTES))
        return self._texts.between(first, stop)[:room]

    async def _work(self, missing: Sequence[str]) -> None:
        began = self._clock.now()

        def report(done: str) -> None:
            self.progress = f"the text encoder ({done} prompts)"

        try:
            await self._encode(missing, report)
        finally:
            self.progress = ""
        self._emit(Encoded(prompts=len(missing), seconds=self._clock.now() - began))

    def _collect(self) -> None:
        """Raise the error of a finished task."""
        if self._task is not None and self._task.done():
            task, self._task = self._task, None
            task.result()
