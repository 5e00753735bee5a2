"""Rewards outside the training process: a few single-threaded reward processes that score shards of a batch.

Invariants (tests/unit/test_rewards_pool.py): `score` returns one finite total per image, in order, or raises a
RewardError that names the reward and the image. Every wait is bounded: a process without a reply in time is killed. A
pool that has lost a process accepts no more work: every later call raises RewardProcessDied, and its owner replaces it.
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
from spotlight.compute.rewards.config import TIMEOUT_S, Term
from spotlight.compute.rewards.protocol import ChecksPrompts, Image, Reward, Scores, UsesDevice
from spotlight.core.errors import ConfigError, RewardError, RewardUnavailable, SpotlightError
from spotlight.core.types import Prompt

_loaded: dict[tuple[str, str], Reward] = {}
"""Rewards of this process by identity and device."""

Answer = TypeVar("Answer")


class _Spawning(SpawnContext):
    """Spawns processes, because a forked child inherits torch's and CUDA's locks, and keeps a list of them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[SpawnProcess] = []

    def Process(self, *args: Any, **settings: Any) -> SpawnProcess:  # type: ignore[override]
        process = SpawnProcess(*args, **settings)
        self.started.append(process)
        return process


class RewardHung(RewardError):
    """A reward process did not reply in time and was killed."""


class RewardProcessDied(RewardError):
    """A reward process ended or was killed from outside, idle or busy; not a verdict on any picture."""


class RewardPool:
    """Scores batches by reward; a name is a reward without options. Each process loads a reward at its first use."""

    def __init__(self, processes: int, timeout_s: float = TIMEOUT_S) -> None:
        """`timeout_s` is the time limit of a shard, including its wait for earlier shards."""
        if processes < 1:
            raise ConfigError(
                f"reward.processes is {processes}, but this command scores pictures in reward processes; set it to at "
                "least 1."
            )
        self._timeout_s = timeout_s
        self._context = _Spawning()
        self._executor = ProcessPoolExecutor(processes, mp_context=self._context, initializer=prepare)

    def version(self, reward: Term | str) -> str:
        """Load the reward in a reward process and return its version; raises early if it cannot be loaded."""
        term = term_of(reward)
        return self._answer(term.name, self._submit(term, _load_version))

    def problems_with(self, reward: Term | str, prompts: Sequence[Prompt]) -> list[str | None] | None:
        """The reward's problem with each prompt (`protocol.ChecksPrompts`); None if it does not check prompts."""
        term = term_of(reward)
        return self._answer(term.name, self._submit(term, _problems_with, prompts))

    def score(
        self,
        reward: Term | str,
        images: Sequence[Image],
        prompts: Sequence[Prompt],
        progress: Callable[[int], None] = lambda done: None,
    ) -> Scores:
        """Return one score per image, in order; `progress` is called with the number of scored images."""
        paired(images, prompts)
        term = term_of(reward)
        starts = range(0, len(images), term.batch)
        futures = [
            self._submit(term, _score_shard, images[start : start + term.batch], prompts[start : start + term.batch])
            for start in starts
        ]
        parts = []
        for start, future in zip(starts, futures, strict=True):
            parts.append(self._answer(term.name, future))
            progress(min(start + term.batch, len(images)))
        return checked(term.name, joined(parts), len(images))

    def close(self) -> None:
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _submit(self, term: Term, task: Callable[..., Answer], *arguments: Any) -> Future[Answer]:
        try:
            return self._executor.submit(_guarded, task, term, *arguments)
        except BrokenProcessPool as error:
            # The process died while idle, so no task reported it.
            raise _died(term.name) from error

    def _answer(self, name: str, future: Future[Answer]) -> Answer:
        """Wait for a task's result; other exceptions of the process become the reward's RewardError."""
        try:
            return future.result(self._timeout_s)
        except FutureTimeout as error:
            if future.done():
                # The task has just ended, or the reward itself raised a TimeoutError.
                return _result_of(name, future)
            self._kill()
            raise RewardHung(
                f"the reward '{name}' gave no answer within {self._timeout_s:g} s, so its process was killed as hung; "
                "find what it waits for, or raise reward.timeout_s."
            ) from error
        except SpotlightError:
            raise
        except BrokenProcessPool as error:
            raise _died(name) from error
        except Exception as error:
            raise raised(name, error) from error

    def _kill(self) -> None:
        """Kill all processes of this pool, including those that start: the hung one cannot be identified."""
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
        f"a process that ran the reward '{name}' died without an error, as after running out of memory or a crash in "
        "native code; free memory, use fewer reward processes, or fix the reward."
    )


def _result_of(name: str, done: Future[Answer]) -> Answer:
    error = done.exception()
    if isinstance(error, Exception):
        raise raised(name, error) from error
    return done.result()


def term_of(reward: Term | str) -> Term:
    """The reward of this name, without options."""
    return Term(name=reward) if isinstance(reward, str) else reward


def _guarded(task: Callable[..., Answer], term: Term, *arguments: Any) -> Answer:
    """Run a task in a reward process. Every exception of the reward becomes a RewardError: the parent cannot import
    the reward's own exception classes, and a SystemExit would end the process."""
    try:
        return task(term, *arguments)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, SpotlightError) and type(error).__module__.startswith("spotlight."):
            raise
        if isinstance(error, RewardUnavailable):
            raise RewardUnavailable(str(error)) from error
        raise raised(term.name, error) from error


def _load(term: Term) -> Reward:
    """The reward on its device, created at its first use."""
    place = (term.identity, term.device)
    if place not in _loaded:
        reward = registry.create(term.name, term.options)
        if isinstance(reward, UsesDevice):
            reward.use_device(term.device)
        elif term.device != "cpu":
            raise RewardError(
                f"the reward '{term.name}' has the device {term.device}, but it computes on the CPU only; leave out "
                "its device."
            )
        _loaded[place] = reward
    return _loaded[place]


def _load_version(term: Term) -> str:
    return _load(term).version


def _problems_with(term: Term, prompts: Sequence[Prompt]) -> list[str | None] | None:
    reward = _load(term)
    return [reward.problem_with(prompt) for prompt in prompts] if isinstance(reward, ChecksPrompts) else None


def _score_shard(term: Term, images: Sequence[Image], prompts: Sequence[Prompt]) -> Scores:
    # Checked before the shards are joined, under the user's name of the reward.
    return checked(term.name, _load(term).score(images, prompts), len(images))
