"""One sample in flight on a simulated worker."""

from dataclasses import dataclass

from spotlight.core import messages as m
from spotlight.core.work import Activity, Request, Work
from spotlight.runtime.sim.numerics import Numerics

_ACTIVITY = {
    Work.ROLLOUT: Activity.ROLLOUT,
    Work.AUDIT: Activity.ROLLOUT,
    Work.EVALUATION: Activity.EVALUATION,
    Work.PREVIEW: Activity.PREVIEW,
}


@dataclass(eq=False)
class Row:
    """Where it is, and what the controller knows of that."""

    granted: m.Granted
    digest: str
    """Of the weights that it is made with."""
    step: int
    latent: str
    began: int
    """The step that this worker took it up at."""
    told: int = 0
    """Step of its last commit."""

    def advance(self, steps: int, numerics: Numerics) -> None:
        self.step += steps
        if steps == 1:
            self.latent = numerics.next_latent(self.latent, self.step - 1, self.digest)
        else:
            self.latent = numerics.latent_at(self.request.sample, self.step, self.digest)

    @property
    def request(self) -> Request:
        return self.granted.request

    @property
    def activity(self) -> Activity:
        return _ACTIVITY[self.request.work]

    @property
    def is_finished(self) -> bool:
        return self.step >= self.request.sample.sampling.steps

    @property
    def owes_commit(self) -> bool:
        return bool(self.granted.commit_every) and self.step - self.told >= self.granted.commit_every

    @property
    def steps_ahead(self) -> int:
        """Until there is something to tell of it: its end, or a commit."""
        ahead = self.request.sample.sampling.steps - self.step
        return min(ahead, self.told + self.granted.commit_every - self.step) if self.granted.commit_every else ahead
