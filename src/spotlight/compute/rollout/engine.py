"""The step-wise rollout engine: a worker's samples, each at its own step, advanced together one step at a time.

Rows that share weights, size, guidance and text width share a forward, whatever their steps, windows and samplers.
Rows are added and removed at step boundaries. Only `progress` and `warms_up` may be read from another thread, and only
the device blocks.

    admit -> [live: step, step, ... commit every k steps] -> finished | withdrawn (with its flight) | discarded

Invariant: with `padded`, a sample's bits depend on its identity, the weights, and the row count alone: not on its
position in the batch, its neighbours, their steps, or where it was interrupted (tests/unit/test_engine.py,
tests/processes/test_flight_processes.py). On CPU that needs a row count that is a multiple of 4, because BLAS computes
left-over rows by another kernel. It also needs the same number of threads, the same kind of processor and the same
build of torch, because all of them choose kernels. Measured on the tiny families: row counts of 5, 6 and 7 depend on
the position, 8 to 64 in multiples of 4 do not, and these agree even with one another. Without padding, a forward has
as many rows as there are samples, and samples agree except for the last few bits.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from spotlight.compute.evaluation import to_images
from spotlight.compute.fast.fast_model import row_bucket
from spotlight.compute.models.adapter import Adapter, ConditionBatch, joined_conditions
from spotlight.compute.rewards.protocol import Image
from spotlight.compute.rollout.denoise import check_finite, check_window
from spotlight.compute.rollout.flight import Flight, Payload
from spotlight.compute.rollout.live import Bucket, LiveRow
from spotlight.compute.rollout.noise import initial_noise
from spotlight.compute.rollout.row_book import RowBook
from spotlight.compute.rollout.seal import seal_of
from spotlight.compute.rollout.step import Advanced, advance
from spotlight.compute.scores import EVALUATION_SEED
from spotlight.compute.weights.resident import Resident
from spotlight.core.errors import ConfigError
from spotlight.core.messages import Progress
from spotlight.core.types import Prompt
from spotlight.core.work import Request, RequestId, WeightsId, Work

ROW_MULTIPLE = 4


@dataclass(frozen=True, kw_only=True)
class Finished:
    """One sample that took its last step; all tensors of the payload are fp32 on the host."""

    request: Request
    attempt: int
    weights_digest: str
    payload: Payload
    steps: int
    """Denoising steps that this attempt ran."""


@dataclass(frozen=True, kw_only=True)
class Committed:
    """One sample at a step boundary; the flight is None before its first step."""

    request: RequestId
    attempt: int
    step: int
    flight: bytes | None
    since: int = 0
    """Step of the commit that the flight builds on; 0 if the flight is whole."""


@dataclass(frozen=True, kw_only=True)
class Boundary:
    """Result of one step: rows that advanced, finished samples, due commits."""

    work: Work | None = None
    """The most urgent kind of work among the rows; None if there was no row."""
    rows: int = 0
    """Number of samples that advanced, without padding."""
    finished: tuple[Finished, ...] = ()
    commits: tuple[Committed, ...] = ()
    is_typical: bool = True
    """False if its forward was compiled first, so that its seconds say nothing about others."""


class Engine(RowBook[LiveRow]):
    """Up to `rows` samples in flight over one model."""

    def __init__(
        self, adapter: Adapter, resident: Resident, run_seed: int, rows: int, padded: bool, in_buckets: bool = False
    ) -> None:
        """`padded`: every forward has all rows. `in_buckets`: it has one of few counts, for a compiled model."""
        if rows < 1:
            raise ConfigError(f"an engine cannot have {rows} rows, because a forward has at least 1; raise it.")
        super().__init__(-(-rows // ROW_MULTIPLE) * ROW_MULTIPLE if padded else rows)
        self.adapter = adapter
        self.resident = resident
        self.run_seed = run_seed
        self.padded = padded
        self.in_buckets = in_buckets
        self._shapes: set[tuple[object, ...]] = set()
        """Shapes of the forwards so far."""
        self.warms_up = False
        """Whether the step in progress compiles its forward."""
        self._uncond: ConditionBatch | None = None

    @property
    def weights(self) -> tuple[WeightsId, ...]:
        """Weight sets of the samples in flight; these must not be dropped."""
        return tuple(sorted({row.request.weights for row in self.live.values()}))

    def admit(
        self, request: Request, prompt: Prompt, attempt: int, commit_every: int = 0, flight: bytes | None = None
    ) -> None:
        """Add a sample at its first step or at the step of its flight; its weights must be held.

        Evaluations draw their noise with the seed of all evaluations, so that `evaluate` makes the same images.
        """
        self._check_room(request)
        sample = request.sample
        if prompt.id != sample.prompt:
            raise ConfigError(
                f"{request.id} is of prompt {sample.prompt} but has the text of {prompt.id}; send the prompt that it "
                "was issued for."
            )
        check_window(sample.sampling)
        digest = self.resident.digest_of(request.weights)
        shape = self.adapter.latent_shape(sample.sampling.size)
        run_seed = EVALUATION_SEED if request.work is Work.EVALUATION else self.run_seed
        row = LiveRow(
            request=request,
            attempt=attempt,
            commit_every=commit_every,
            run_seed=run_seed,
            sigmas=self.adapter.schedule(sample.sampling.size, sample.sampling.steps).tolist(),
            cond=self._condition(prompt),
            x_SC=initial_noise(run_seed, [sample], shape)[0].to(self.adapter.device),
            is_exact=request.work.is_exact or not self.resident.rounds,
        )
        if flight is not None:
            row.resume(Flight.from_bytes(flight, request, digest, shape))
        self.live[request.id] = row

    def step(self) -> Boundary:
        """Advance the bucket of the most urgent sample; if it raises Diverged, no row has advanced."""
        if not self.live:
            return Boundary()
        first, batch = self.next_batch()
        with self._warming_up(len(batch), first.bucket), self.resident.use(first.bucket.weights, first.bucket.is_exact):
            is_typical = not self.warms_up
            advanced = self._advance(batch)
        last = [index for index, row in enumerate(batch) if row.is_last_step]
        if last:
            check_finite([batch[index].request.sample for index in last], advanced.x_BSC[last])
        for drawn in advanced.drawn:
            for entry, index in enumerate(drawn.rows):
                batch[index].record(entry, drawn)
        for row, x_SC, velocity_SC in zip(batch, advanced.x_BSC.unbind(), advanced.velocity, strict=True):
            row.x_SC, row.velocity_SC, row.step = x_SC.clone(), velocity_SC, row.step + 1
        finished = [self._finish(row) for row in batch if row.is_finished]
        due = [row.request.id for row in batch if row.is_commit_due and not row.is_finished]
        return Boundary(
            work=first.request.work,
            rows=len(batch),
            finished=tuple(finished),
            commits=tuple(self.commit(due)),
            is_typical=is_typical,
        )

    def commit(self, ids: Iterable[RequestId]) -> list[Committed]:
        """Commit the new parts of these flights; skips samples that are not here or have taken no step."""
        rows = [self.live[request] for request in ids if request in self.live]
        return [self._committed(row, is_whole=False) for row in rows if row.step]

    def withdraw(self, request: RequestId) -> Committed | None:
        """Remove an attempt and return it with its whole flight; None if it is not here."""
        row = self.live.pop(request, None)
        return None if row is None else self._committed(row, is_whole=True)

    def progress(self) -> tuple[Progress, ...]:
        """Step of every sample in flight; may be called from any thread."""
        return tuple(Progress(row.request.id, row.attempt, row.step) for row in tuple(self.live.values()))

    def _advance(self, batch: list[LiveRow]) -> Advanced:
        return advance(
            self.adapter,
            torch.stack([row.x_SC for row in batch]),
            [row.place for row in batch],
            joined_conditions([row.cond for row in batch]),
            self._unconditions(batch),
            rows=self._forward_rows(len(batch)),
        )

    @contextmanager
    def _warming_up(self, samples: int, bucket: Bucket) -> Iterator[None]:
        """A new shape of a compiled model's forward is compiled first."""
        shape = (self._forward_rows(samples), bucket.is_exact, bucket.size, bucket.guidance, bucket.text_width)
        self.warms_up = self.in_buckets and shape not in self._shapes
        try:
            yield
            self._shapes.add(shape)
        finally:
            self.warms_up = False

    def _forward_rows(self, samples: int) -> int:
        if self.padded:
            return self.rows
        return row_bucket(samples, self.rows) if self.in_buckets else samples

    def _finish(self, row: LiveRow) -> Finished:
        del self.live[row.request.id]
        digest = self.resident.digest_of(row.request.weights)
        return Finished(
            request=row.request,
            attempt=row.attempt,
            weights_digest=digest,
            payload=row.payload(digest),
            steps=row.step - row.began,
        )

    def _committed(self, row: LiveRow, is_whole: bool) -> Committed:
        if not row.step:
            return Committed(request=row.request.id, attempt=row.attempt, step=0, flight=None)
        flight = row.flight(self.resident.digest_of(row.request.weights), is_whole)
        data = flight.to_bytes()
        row.note_commit(seal_of(data))
        return Committed(request=row.request.id, attempt=row.attempt, step=row.step, flight=data, since=flight.since)

    def _condition(self, prompt: Prompt) -> ConditionBatch:
        """Conditioning of one row, shared with a sample of the same prompt in flight."""
        for row in self.live.values():
            if row.request.sample.prompt == prompt.id:
                return row.cond
        return self.adapter.collate(self.adapter.encode([prompt]))

    def _unconditions(self, batch: list[LiveRow]) -> ConditionBatch | None:
        if batch[0].request.sample.sampling.guidance == 1.0:
            return None
        if self._uncond is None:
            self._uncond = self.adapter.collate([self.adapter.unconditional()])
        return joined_conditions([self._uncond] * len(batch))

    def _check_room(self, request: Request) -> None:
        if request.id in self.live:
            raise ConfigError(
                f"{request.id} cannot be admitted, because it is in flight here and a sample has one live attempt; "
                "withdraw the first."
            )
        if not self.free_rows:
            raise ConfigError(
                f"{request.id} cannot be admitted, because all {self.rows} rows are in flight; pull at most free_rows."
            )


@torch.no_grad()
def decode_images(adapter: Adapter, finished: Sequence[Finished]) -> list[Image]:
    """Decode images as uint8 height x width x 3, in order; may run in another thread while the engine steps."""
    images: list[Image] = []
    for done in finished:
        x0_BSC = done.payload.x0_SC.unsqueeze(0).to(adapter.device)
        images += to_images(adapter.decode(x0_BSC, done.request.sample.sampling.size))
    return images
