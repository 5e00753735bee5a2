"""Rewards outside the training process: a few single-threaded reward processes that score shards of a batch.

Invariant: what `score` returns has one finite total per image, in order; anything else is a RewardError that names
the reward and the image. Every wait is bounded: a process that gives no answer in time is killed
(tests/unit/test_rewards_pool.py). A pool that lost a process takes no more work: every later call raises
RewardProcessDied, and its owner replaces it.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.context import SpawnContext, SpawnProcess
from types import TracebackType
from typing import Any, TypeVar

from spotlight.compute.rewards import registry
from spotlight.compute.rewards.answers import checked, joined, paired, raised
from spotlight.compute.rewards.child import prepare
from spotlight.compute.rewards.config import TIMEOUT_S
from spotlight.compute.rewards.protocol import ChecksPrompts, Image, Reward, Scores
from spotlight.core.errors import ConfigError, RewardError, SpotlightError
from spotlight.core.types import Prompt

SHARD = 16
"""Images per task: the reading model is quickest at 8 to 16, and small shards spread evenly."""

_loaded: dict[str, Reward] = {}

Answer = TypeVar("Answer")


class _Spawning(SpawnContext):
    """Starts processes anew, because a forked child inherits torch's and CUDA's locks; and remembers them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **settings: Any) -> SpawnProcess:  # type: ignore[override]
        process = SpawnProcess(*args, **settings)
        self.started.append(process)
        return process


class RewardHung(RewardError):
    """A reward process gave no answer in time, and was killed."""


class RewardProcessDied(RewardError):
    """A reward process ended by itself or was killed from outside, idle or busy: no verdict on any picture."""


class RewardPool:
    """Scores batches by reward name; each process loads a reward at its first use."""

    def __init__(self, processes: int, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` is how long a shard may take, the wait for others' shards before it included."""
        if processes < 1:
            raise ConfigError(
                f"reward.processes is {processes}, but this judges pictures in reward processes of their own; set it "
                "to at least 1."
            )
        self._timeout_s = timeout_s
        self._context = _Spawning()
        self._executor = ProcessPoolExecutor(processes, mp_context=self._context, initializer=prepare)

    def version(self, name: str) -> str:
        """The version of a reward as a reward process loads it; tells early that it cannot be loaded."""
        return self._answer(name, self._submit(name, _load_version, name))

    def problems_with(self, name: str, prompts: Sequence[Prompt]) -> list[str | None] | None:
        """What the reward says of each prompt (`protocol.ChecksPrompts`); None where it cannot say."""
        return self._answer(name, self._submit(name, _problems_with, name, prompts))

    def score(
        self,
        name: str,
        images: Sequence[Image],
        prompts: Sequence[Prompt],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Scores:
        """One score per image, in order; `progress` hears how many are scored."""
        paired(images, prompts)
        starts = range(0, len(images), SHARD)
        futures = [
            self._submit(name, _score_shard, name, images[start : start + SHARD], prompts[start : start + SHARD])
            for start in starts
        ]
        parts = []
        for start, future in zip(starts, futures, strict=True):
            parts.append(self._answer(name, future))
            progress(min(start + SHARD, len(images)))
        return checked(name, joined(parts), len(images))

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _submit(self, name: str, task: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        try:
            return self._executor.submit(_guarded, task, *arguments)
        except BrokenProcessPool as error:
            # It died while it had nothing to do, so no task was there to report it.
            raise _died(name) from error

    def _answer(self, name: str, future: Future[Answer]) -> Answer:
        """What a reward process found; whatever else goes wrong there is the reward's doing."""
        try:
            return future.result(self._timeout_s)
        except FutureTimeout as error:
            if future.done():
                # It ended just now; or the time limit is one that the reward itself ran into.
                return _found(name, future)
            self._kill()
            raise RewardHung(
                f"the reward '{name}' gave no answer within {self._timeout_s:g} s, so its process hangs and was "
                "killed; see what it waits for, or raise reward.timeout_s."
            ) from error
        except SpotlightError:
            raise
        except BrokenProcessPool as error:
            raise _died(name) from error
        except Exception as error:
            raise raised(name, error) from error

    def _kill(self) -> None:
        """All processes of this pool, those that are just starting too: which of them hangs cannot be told."""
        for process in self._context.started:
            if process.pid is not None:
                process.kill()

    def __enter__(self) -> "RewardPool":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _died(name: str) -> RewardProcessDied:
    return RewardProcessDied(
        f"a process that ran the reward '{name}' died without an error, as it does when it runs out of memory or "
        "crashes in native code; free memory, use fewer reward processes, or fix the reward."
    )


def _found(name: str, done: Future[Answer]) -> Answer:
    error = done.exception()
    if isinstance(error, Exception):
        raise raised(name, error) from error
    return done.result()


def _guarded(task: Callable[..., Answer], name: str, *arguments: Any) -> Answer:
    """Runs in a reward process. Whatever the reward raises goes to the parent as a RewardError: the parent cannot
    import the reward's own exception classes, and a SystemExit would end it."""
    try:
        return task(name, *arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, SpotlightError) and type(error).__module__.startswith("spotlight."):
            raise
        raise raised(name, error) from error


def _load(name: str) -> Reward:
    if name not in _loaded:
        _loaded[name] = registry.create(name)
    return _loaded[name]


def _load_version(name: str) -> str:
    return _load(name).version


def _problems_with(name: str, prompts: Sequence[Prompt]) -> list[str | None] | None:
    reward = _load(name)
    return [reward.problem_with(prompt) for prompt in prompts] if isinstance(reward, ChecksPrompts) else None


def _score_shard(name: str, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
    # Checked here, before shards are joined, under the name the user gave.
    return checked(name, _load(name).score(images, prompts), len(images))
