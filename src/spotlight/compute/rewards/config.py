"""Section `reward` of a recipe; free of torch."""

import msgspec
from pydantic import Field

from spotlight.core.section import Section

TIMEOUT_S = 300.0


class SecondJudge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A judge of held-out pictures beside the reward, which training never sees, so that reward hacking shows."""

    name: str
    every: int
    """Iterations between evaluations that it judges."""
    last: int
    """Iteration of the run's last evaluation, which it judges too."""

    def is_due(self, iteration: int) -> bool:
        return iteration % self.every == 0 or iteration == self.last


class RewardConfig(Section):
    """What is rewarded, what else judges held-out pictures, and how many processes score."""

    name: str | None = None
    """A reward's name or package.module:function (docs/data_and_rewards.md); None takes the family's own."""
    folder: str | None = None
    """Folder that package.module:function is imported from, beside what is installed; None takes the working folder.
    The run keeps it, and `resume` from another working folder must name it again, because a run folder does not decide
    whose code is run."""
    judge: str | None = None
    """A second judge, named likewise, whose score of held-out pictures is reported and never trained on
    (`eval.judge_every`). None takes the family's own where the reward is the family's own, and else none."""
    processes: int = Field(default=2, ge=0)
    """Reward processes, one thread each; 0 judges in the process that draws, on its device, which only programs of
    one process do: the learning benchmarks and the simulator."""
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    """Seconds without an answer after which a reward process is taken for hung and killed; loading the
    judge counts, and so does waiting for a remote one."""
