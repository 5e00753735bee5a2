"""The work of a slot in a run, without messages: it admits and denoises samples, commits their flights, and decodes
and scores them meanwhile.

A worker, its sender thread and its node's rewards share the machine's cores, so on a machine without spare cores a step
takes longer in a run than alone.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import count
from types import TracebackType

from spotlight.compute.data.worlds import World
from spotlight.compute.profiling.subject import RUN_SEED, ProfiledModel
from spotlight.compute.profiling.workload import STEPS
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.rollout.engine import Engine, Finished, decode_images
from spotlight.core.types import Sample, Sampling, Version
from spotlight.core.work import Request, Work

COMMIT_EVERY = 2
"""Steps between two commits of a sample, as `cluster.commit_every` by default; the model's thread makes them."""


class SlotAtWork:
    """One model and one reward process; its exit ends the reward process."""

    def __init__(self, subject: ProfiledModel, world: World) -> None:
        self._subject = subject
        self._world = world
        (self._prompt,) = world.held_out(1)
        self._seeds = count()
        self._judge = RewardPool(1)
        self._sender = ThreadPoolExecutor(1)
        self._sent: Future[None] | None = None
        self._engines: dict[int, Engine] = {}

    def __enter__(self) -> "SlotAtWork":
        self._judge.version(self._world.reward)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._sender.shutdown()
        self._judge.close()

    def wave(self, rows: int) -> None:
        """Denoise `rows` samples from their first step to their last; they are scored during the next wave."""
        for _ in range(STEPS):
            self.step(rows)

    def step(self, rows: int) -> None:
        """Take one step of a full batch."""
        engine = self._engine(rows)
        while engine.free_rows:
            self._admit(engine)
        finished = engine.step().finished
        if finished:
            if self._sent is not None:
                self._sent.result()
            self._sent = self._sender.submit(self._deliver, finished)

    def _engine(self, rows: int) -> Engine:
        if rows not in self._engines:
            subject = self._subject
            self._engines[rows] = Engine(subject.adapter, subject.resident, RUN_SEED, rows, padded=False)
        return self._engines[rows]

    def _admit(self, engine: Engine) -> None:
        sampling = Sampling(steps=STEPS, size=self._subject.size)
        sample = Sample(prompt=self._prompt.id, seed=next(self._seeds), sampling=sampling, version=Version(0))
        request = Request(work=Work.ROLLOUT, iteration=0, group=0, sample=sample)
        engine.admit(request, self._prompt, attempt=1, commit_every=COMMIT_EVERY)

    def _deliver(self, finished: Sequence[Finished]) -> None:
        images = decode_images(self._subject.adapter, finished)
        self._judge.score(self._world.reward, images, [self._prompt] * len(images))
