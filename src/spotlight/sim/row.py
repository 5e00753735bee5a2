"""One sample in flight on a simulated worker."""

from dataclasses import dataclass
from functools import lru_cache

import msgspec

from spotlight.compute.rollout.row_book import is_commit_due
from spotlight.core import messages as m
from spotlight.core.types import Prompt, PromptId
from spotlight.core.work import Activity, Request, WeightsId
from spotlight.node.worker_core import ACTIVITIES
from spotlight.sim.crash_points import Broken
from spotlight.sim.fakes import FlightPart, part_seal, read_flight
from spotlight.sim.numerics import Numerics


@lru_cache(maxsize=1 << 12)
def prompt_id(prompt: Prompt) -> PromptId:
    """The prompt's hash, cached for all of its samples."""
    return prompt.id


@dataclass(eq=False, slots=True)
class SimRow:
    """State of one sample in flight, and of its last commit."""

    granted: m.Granted
    request: Request
    attempt: int
    bucket: tuple[WeightsId, bool]
    """Weights, and whether they are used unrounded."""
    digest: str
    """Digest of the weights in use."""
    latent: str
    steps: int
    """Steps of the whole sample."""
    passes: int
    """Rows per forward: two with guidance."""
    step: int = 0
    began: int = 0
    """Step at which this worker started."""
    committed: int = 0
    """Step of its last commit."""
    seal: int = 0
    """Seal of its last commit."""

    def advance(self, steps: int, numerics: Numerics) -> None:
        self.step += steps
        if steps == 1:
            self.latent = numerics.next_latent(self.latent, self.step - 1, self.digest)
        else:
            self.latent = numerics.latent_at(self.request.sample, self.step, self.digest)

    def result(self, digest: str) -> m.Result:
        """The message that reports it as made with weights of this digest."""
        steps = self.step - self.began
        return m.Result(request=self.request.id, attempt=self.attempt, digest=digest, steps=steps)

    def resume_from(self, blob: bytes, numerics: Numerics) -> str:
        """Continue from the end of this flight; return what is wrong with it, or nothing.

        A flight of other weights may come, and is made again; one that is damaged, incomplete or of another sample or
        attempt never may.
        """
        request, since, base = self.request, 0, 0
        try:
            parts = read_flight(blob)
        except ValueError as problem:
            raise Broken(f"{request.id} was granted a flight that cannot be read: {problem}") from problem
        if any(part.digest != self.digest for part in parts):
            return f"the flight of {request.id} was made with {parts[-1].digest}, not with {self.digest}"
        for part in parts:
            latent = numerics.latent_at(request.sample, part.step, self.digest)
            expected = msgspec.structs.replace(part, request=request.id, since=since, base=base, latent=latent)
            if part != expected:
                raise Broken(f"{request.id} was granted a flight with {part} instead of {expected}")
            since, base = part.step, part_seal(part.to_bytes())
        if since != self.granted.step:
            raise Broken(f"{request.id} was granted from step {self.granted.step} with a flight of step {since}")
        self.step = self.began = self.committed = since
        self.seal = base
        self.latent = parts[-1].latent
        return ""

    def flight(self) -> bytes:
        """The whole flight."""
        return self._part(0, 0)

    def commit(self) -> bytes:
        """The part since the last commit."""
        part = self._part(self.committed, self.seal)
        self.committed, self.seal = self.step, part_seal(part)
        return part

    def _part(self, since: int, base: int) -> bytes:
        return FlightPart(
            request=self.request.id,
            attempt=self.attempt,
            step=self.step,
            since=since,
            base=base,
            digest=self.digest,
            latent=self.latent,
        ).to_bytes()

    @property
    def activity(self) -> Activity:
        return ACTIVITIES[self.request.work]

    @property
    def owes_commit(self) -> bool:
        return is_commit_due(self.granted.commit_every, self.step, self.committed)

    @property
    def steps_ahead(self) -> int:
        """Steps until the next commit or the end."""
        ahead, every = self.steps - self.step, self.granted.commit_every
        commit = self.committed + every - self.step
        return commit if every and commit < ahead else ahead


def start_row(granted: m.Granted, digest: str, blob: bytes | None, is_exact: bool, numerics: Numerics) -> SimRow | str:
    """The row of a granted sample, continued from its flight if there is one; or what is wrong."""
    request = granted.request
    if prompt_id(granted.prompt) != request.sample.prompt:
        return f"{request.id} came with another prompt"
    if granted.step and blob is None:
        raise LookupError(f"{request.id} continues from step {granted.step}, but the grant has no flight")
    sample = request.sample
    sampling = sample.sampling
    passes = 1 if sampling.guidance == 1.0 else 2
    bucket = (request.weights, is_exact)
    row = SimRow(
        granted, request, granted.attempt, bucket, digest, numerics.first_latent(sample), sampling.steps, passes
    )
    problem = row.resume_from(blob, numerics) if blob is not None else ""
    return problem or row
