"""Group of a rank and, for tests of whole crews, its engine over a shared adapter (see parallel_ranks.py)."""

import hashlib
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tiny_models import NOISE_LEVELS

from spotlight.compute.models import families
from spotlight.compute.parallel.crew_adapter import SharedAdapter
from spotlight.compute.parallel.group import CrewGroup, form
from spotlight.compute.parallel.links import GlooLink, wait_for_teardown
from spotlight.compute.rollout import step as step_module
from spotlight.compute.rollout.engine import Engine
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.crew_messages import Forward, GroupToken
from spotlight.core.types import NO_WINDOW, Prompt, Sample, SamplerKind, Sampling, Version, Window, WorkerId
from spotlight.core.work import Request, WeightsId, Work

RUN_SEED, ROWS, STEPS = 11, 4, 8
WEIGHTS = WeightsId(Version(1))
PROMPTS = [Prompt(text=f'the word "{word}"') for word in ("badge", "fed", "cab")]
EXCHANGE = GlooLink.exchange
_groups: list[CrewGroup | None] = [None]


def current() -> CrewGroup | None:
    return _groups[0]


def join(token: GroupToken, members: tuple[WorkerId, ...], rank: int, path: str, limit_s: float) -> int:
    """Leave the old group and form the new one; returns its degree."""
    old, _groups[0] = _groups[0], None
    if old is not None:
        old.drop()
    _groups[0] = form(token, members, rank, path, limit_s=limit_s)
    return 1 if _groups[0] is None else _groups[0].degree


def settle() -> bool:
    """Drop the group and wait until no teardown is under way."""
    old, _groups[0] = _groups[0], None
    if old is not None:
        old.drop()
    return wait_for_teardown(10)


class CrewMember:
    """One worker: a model with published weights, an engine, and a shared adapter."""

    def __init__(self, link: Connection) -> None:
        self._link = link
        self._engine: Any = None
        self.orders: dict[str, Callable[..., Any]] = {
            "build": self.build,
            "admit": self.admit,
            "step": self.step,
            "withdraw": self.withdraw,
            "follow": self.follow,
            "bind": self.bind,
            "shift_noise": self.shift_noise,
            "die_inside": self.die_inside,
        }

    def build(self, store: str, altered: bool = False) -> None:
        """Build the engine; `altered` weights have the same name and another digest."""
        adapter = families.load("words")
        weights = {n: p.detach() * (1.02 if altered else 1.01) for n, p in adapter.transformer.named_parameters()}
        node = NodeStore(Path(store))
        node.publish(WEIGHTS, adapter.family, weights, "base")
        self._resident = Resident(adapter.transformer, "base")
        self._resident.load(node.open(WEIGHTS))
        self._shared = SharedAdapter(adapter, self._link.send, self._resident)
        self._engine = Engine(self._shared, self._resident, RUN_SEED, ROWS, padded=True)
        self._size = adapter.native_size

    def bind(self) -> int:
        self._shared.bind(current())
        return self._shared.degree

    def admit(self, guidance: float, flight: bytes | None = None) -> None:
        """Admit three samples with different windows; the first may resume from a flight."""
        for seed, window in enumerate((Window(3, 3), NO_WINDOW, Window(0, 2))):
            kind = SamplerKind.FLOW_SDE if window.size else SamplerKind.ODE
            sampling = Sampling(
                steps=STEPS, size=self._size, sampler=kind, noise_level=NOISE_LEVELS.get(kind, 0.0), window=window,
                guidance=guidance,
            )  # fmt: skip
            sample = Sample(prompt=PROMPTS[seed].id, seed=seed, sampling=sampling, version=WEIGHTS.version)
            request = Request(work=Work.ROLLOUT, iteration=0, group=seed, sample=sample)
            self._engine.admit(request, PROMPTS[seed], 1, 0, flight if seed == 0 else None)

    def step(self) -> dict[int, str]:
        """Digests of the samples that finished with this step, by seed."""
        return {done.request.sample.seed: _digest(done.payload) for done in self._engine.step().finished}

    def withdraw(self) -> bytes:
        """Withdraw all samples; returns the flight of the first."""
        progress = self._engine.progress()
        flights = [self._engine.withdraw(row.request).flight for row in progress]
        return flights[0]

    def follow(self, forward: Forward) -> str:
        with self._resident.use(forward.weights):
            self._shared.follow(forward, self._resident.digest_of(forward.weights))
        return "followed"

    def die_inside(self, exchange: int | None) -> None:
        """Kill this process with SIGKILL at its n-th exchange from now; None cancels that."""
        count = iter(range(10**9))

        def exchange_or_die(link: GlooLink, *arguments: Any) -> Any:
            if next(count) == exchange:
                os.kill(os.getpid(), signal.SIGKILL)
            return EXCHANGE(link, *arguments)

        GlooLink.exchange = exchange_or_die

    def shift_noise(self) -> None:
        """Plant an off-by-one: each step draws the noise of the next."""
        stock = step_module.step_noise
        step_module.step_noise = lambda seed, samples, step, shape: stock(seed, samples, step + 1, shape)


def _digest(payload: Any) -> str:
    """Digest of every bit that training would use."""
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in (payload.x0_SC, payload.path_KSC, payload.log_prob_K, payload.mean_KSC):
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()
