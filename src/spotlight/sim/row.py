"""One sample in flight on a simulated worker."""

from dataclasses import dataclass
from functools import lru_cache

from spotlight.core import messages as m
from spotlight.core.types import Prompt, PromptId
from spotlight.core.work import Activity, Request
from spotlight.node.worker_core import ACTIVITIES
from spotlight.sim.fakes import FlightPart, read_flight
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

    def advance(self, steps: int, numerics: Numerics) -> None:
        self.step += steps
        if steps == 1:
            self.latent = numerics.next_latent(self.latent, self.step - 1, self.digest)
        else:
            self.latent = numerics.latent_at(self.request.sample, self.step, self.digest)

    def resume_from(self, blob: bytes, numerics: Numerics) -> str:
        """Continue from the end of this flight; return what is wrong with it, or nothing."""
        request, parts = self.request, read_flight(blob)
        steps = [part.step for part in parts]
        for part, since in zip(parts, [0, *steps], strict=False):
            latent = numerics.latent_at(request.sample, part.step, self.digest)
            if part != FlightPart(request=request.id, step=part.step, since=since, digest=self.digest, latent=latent):
                return f"the flight of {request.id} has {part} after step {since}"
        if steps[-1] != self.granted.step:
            return f"the flight of {request.id} ends at {steps[-1]}, not at {self.granted.step}"
        self.step = self.began = self.committed = self.granted.step
        self.latent = parts[-1].latent
        return ""

    def flight(self, since: int = 0) -> bytes:
        """The flight part since that step."""
        part = FlightPart(request=self.request.id, step=self.step, since=since, digest=self.digest, latent=self.latent)
        return part.to_bytes()

    @property
    def activity(self) -> Activity:
        return ACTIVITIES[self.request.work]

    @property
    def owes_commit(self) -> bool:
        return bool(self.granted.commit_every) and self.step - self.committed >= self.granted.commit_every

    @property
    def steps_ahead(self) -> int:
        """Steps until the next commit or the end."""
        ahead, every = self.steps - self.step, self.granted.commit_every
        commit = self.committed + every - self.step
        return commit if every and commit < ahead else ahead


def start_row(granted: m.Granted, digest: str, blob: bytes | None, numerics: Numerics) -> SimRow | str:
    """The row of a granted sample, continued from its flight if there is one; or what is wrong."""
    request = granted.request
    if prompt_id(granted.prompt) != request.sample.prompt:
        return f"{request.id} came with another prompt"
    if granted.step and blob is None:
        raise LookupError(f"{request.id} continues from step {granted.step}, but the grant has no flight")
    sample = request.sample
    sampling = sample.sampling
    passes = 1 if sampling.guidance == 1.0 else 2
    row = SimRow(granted, request, digest, numerics.first_latent(sample), sampling.steps, passes)
    problem = row.resume_from(blob, numerics) if blob is not None else ""
    return problem or row
