"""Section `reward` of a recipe; free of torch."""

import msgspec
from pydantic import Field

from spotlight.core.section import Section

TIMEOUT_S = 300.0


class SecondJudge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second judge of held-out pictures, whose scores are not trained on, so that reward hacking shows."""

    name: str
    every: int
    """Iterations between evaluations that it scores."""
    last: int
    """Iteration of the run's last evaluation, which it also scores."""

    def is_due(self, iteration: int) -> bool:
        return iteration % self.every == 0 or iteration == self.last


class RewardConfig(Section):
    """The reward, the second judge of held-out pictures, and the reward processes."""

    name: str | None = None
    """A reward's name or package.module:function (docs/data_and_rewards.md); None uses the family's own."""
    folder: str | None = None
    """Folder that package.module:function is imported from, beside the installed packages; None uses the working
    folder. The run records it. `resume` from another working folder must name it again, because a run folder must not
    decide which code runs."""
    judge: str | None = None
    """A second judge, named likewise, whose score of held-out pictures is reported and never trained on
    (`eval.judge_every`). None uses the family's own if the reward is the family's own, else no judge."""
    processes: int = Field(default=2, ge=0)
    """Reward processes, one thread each. 0 scores in the sampling process, on its device; only programs of one process
    do that: the learning benchmarks and the simulator."""
    timeout_s: float = Field(default=TIMEOUT_S, gt=0)
    """Seconds without a reply after which a reward process is killed as hung, including the time to load the reward or
    to wait for a remote one."""
