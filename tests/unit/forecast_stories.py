"""Round durations, and a small run to forecast with them."""

from collections.abc import Mapping

from spotlight.control.explore.config import ExploreConfig
from spotlight.control.forecast import Evaluations, Fleet, Rates, Workload
from spotlight.control.profiles import Operation

ROUND_SECONDS: Mapping[Operation, float] = {
    Operation.DENOISE_STEP: 1.0,
    Operation.PREVIEW_STEP: 1.0,
    Operation.TRAIN_TIMESTEP: 2.0,
    Operation.OPTIMIZER_STEP: 5.0,
    Operation.DECODE: 0.0,
    Operation.REWARD: 0.0,
    Operation.PUBLISH: 3.0,
    Operation.NODE_FETCH: 4.0,
    Operation.ADOPT: 1.0,
    Operation.WORKER_START: 60.0,
    Operation.ROLE_SWITCH: 0.5,
    Operation.CHECKPOINT: 10.0,
    Operation.SNAPSHOT: 2.5,
}
BY_BATCH = (
    *(Operation.DENOISE_STEP, Operation.PREVIEW_STEP, Operation.TRAIN_TIMESTEP),
    *(Operation.DECODE, Operation.REWARD),
)


class Proportional:
    """Every row costs the same; other operations have one figure."""

    def __init__(self, changed: Mapping[Operation, float] | None = None) -> None:
        self._seconds = {**ROUND_SECONDS, **(changed or {})}

    def seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        return self._seconds[operation] * (batch if operation in BY_BATCH else 1)


RATES = Rates(reserved=6.0, spot=2.0)
FLEET = Fleet(reserved=2, spot=2, gang=2, slots=1, rows=4, scorers=1)
WORK = Workload(
    iterations=10,
    prompts=4,
    group_size=8,
    steps=10,
    passes=1,
    timesteps=2,
    forwards=0,
    updates=2,
    micro_batch=4,
    evaluation=Evaluations(every=5, pictures=8, steps=10, passes=1),
    checkpoint_every=5,
    explore=None,
)
EXPLORE = ExploreConfig(enabled="on", seeds=16, steps=5, audit_share=0.25)
