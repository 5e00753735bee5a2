"""Seconds of each operation of one worker: constants, which storms draw, or values of a profile.

Training is charged as data-parallel: every rank takes an equal share of the image-timesteps, in batches of the
profile's efficient size. The last part of an update ends with one optimizer step of all ranks. Batches over pairs take
image-timesteps in their order; batches over samples take one timestep of a part's samples after the other, so small
parts make small batches. A loss's forwards beside the trained one (NFT's behaviour policy, the reference of a KL term)
are charged as denoising steps. Each change of role is charged. A checkpoint blocks its trainer for the snapshot and is
written beside other work; its duration includes the snapshot.

Published weights are charged by their source, which `node/loading_core.py` chooses: `adopt` from the worker's own copy,
`copy` from a neighbour on the node, `load_s` from the node's store. The copy to that store is the node's and comes
before, unless the profile has no figure of its own for it.
"""

from dataclasses import dataclass

from spotlight.compute.rollout.config import RolloutConfig
from spotlight.compute.train.config import AlgorithmConfig, FlowGrpoConfig
from spotlight.control.explore.config import Precision
from spotlight.control.pipeline.tsp import BatchesOver, run_sizes
from spotlight.control.profiles import Operation, Profile
from spotlight.core import messages as m
from spotlight.core.types import Size
from spotlight.core.work import Work

NEEDED = (
    *(Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.OPTIMIZER_STEP, Operation.DECODE, Operation.REWARD),
    *(Operation.PUBLISH, Operation.NODE_FETCH, Operation.WORKER_START, Operation.ROLE_SWITCH, Operation.CHECKPOINT),
)
"""Operations that every simulated run is charged for."""
DENOISE_STEP, DECODE = Operation.DENOISE_STEP, Operation.DECODE
"""Looked up once for speed, because every step uses them."""
TOKEN_PIXELS = 64
"""Pixels of a token of `words`, which the constants represent."""


@dataclass
class Pace:
    """Constants, in seconds; `slowness` multiplies steps."""

    step_s: float
    start_s: float
    load_s: float
    train_s: float
    heartbeat_s: float
    slowness: float = 1.0
    rounds: bool = False
    """Whether previews use a separate forward, with rounded weights."""
    runs_ahead: bool = False
    """Whether consecutive steps without events between them are simulated as one; storms inject faults at every
    boundary."""
    adopt_s: float | None = None
    """Seconds to apply weights that the worker published itself; None: `load_s`."""
    copy_s: float | None = None
    """Seconds to copy weights from a neighbour's device and apply them; None: `load_s`."""
    connect_s: float = 0.01
    """Seconds in which the members of a crew connect."""
    save_s: float | None = None
    """Seconds from the order of a checkpoint until it is on disk; None: `load_s`."""

    def is_exact(self, work: Work) -> bool:
        """Whether the work uses exact weights, not rounded ones."""
        return not self.rounds or work.is_exact

    def step(self, rows: int, capacity: int, degree: int, is_exact: bool = True) -> float:
        """Seconds of one denoising step of `rows` out of `capacity` rows, in a crew of this degree."""
        return self.step_s * self.slowness * max(rows / capacity, 0.5) / degree

    def part(self, rows: int, degree: int, is_exact: bool = True) -> float:
        """Seconds of a follower's part of such a step."""
        return self.step_s * self.slowness / degree

    def image(self, size: Size) -> tuple[Size, int]:
        """Size and tokens of the images whose durations these are, for a sample of this size."""
        return size, size.height * size.width // TOKEN_PIXELS

    def adopt(self) -> float:
        """Seconds to apply a set from the worker's own copy."""
        return self.load_s if self.adopt_s is None else self.adopt_s

    def copy(self) -> float:
        """Seconds to apply a set from a neighbour's device."""
        return self.load_s if self.copy_s is None else self.copy_s

    def decode(self, pictures: int) -> float:
        """Seconds to decode latents to pictures."""
        return 0.0

    def roll(self) -> float:
        """Seconds of the change of role before a rollout step, if the worker was training."""
        return 0.0

    def switch(self) -> float:
        """Seconds of the change of role at the beginning of the next Train order; included in `train`."""
        return 0.0

    def train(self, order: m.Train) -> float:
        """Seconds of an update, or of a part of one."""
        return self.train_s * len(order.items) / order.samples if order.samples else self.train_s

    def publish(self) -> float:
        """Seconds to write the published weights."""
        return self.load_s

    def restore(self) -> float:
        """Seconds to take over the state of a checkpoint or of another rank."""
        return self.load_s

    def snapshot(self) -> float:
        """Seconds that a checkpoint blocks the trainer."""
        return min(self.load_s, self.save())

    def save(self) -> float:
        """Seconds of a checkpoint from its order until it is on disk, including the snapshot."""
        return self.load_s if self.save_s is None else self.save_s

    def write(self) -> float:
        """Seconds of a checkpoint that run beside other work."""
        return max(0.0, self.save() - self.snapshot())


def preview_operation(profile: Profile, precision: Precision) -> Operation:
    """The forward that previews are charged for: in fp8, with rounded adapters, or that of rollouts."""
    if precision is Precision.FP8:
        return Operation.FP8_PREVIEW_STEP
    return Operation.PREVIEW_STEP if Operation.PREVIEW_STEP in profile.operations else DENOISE_STEP


@dataclass(frozen=True)
class TrainingCost:
    """Training cost per image."""

    timesteps: int
    forwards: int
    """Forwards with other weights than theta, per timestep."""
    passes: int = 1
    """Rows of a forward per image: 2 with guidance."""
    over: BatchesOver = BatchesOver.PAIRS

    @classmethod
    def of(cls, algorithm: AlgorithmConfig, rollout: RolloutConfig, over: BatchesOver) -> "TrainingCost":
        reference = int(algorithm.kl_weight > 0)
        passes = 1 if rollout.guidance == 1.0 else 2
        if isinstance(algorithm, FlowGrpoConfig):
            return cls(rollout.window_size, reference, passes, over)
        # As in the loss, a path has at most one timestep per step.
        return cls(min(algorithm.timesteps_per_sample, rollout.steps), 1 + reference, passes, over)

    def runs(self, images: int) -> list[int]:
        """Sizes of the consecutive runs of rows that are cut into batches."""
        return run_sizes(images * self.passes, self.timesteps, self.over)


@dataclass
class ProfiledPace(Pace):
    """Seconds of one worker's operations, from a profile."""

    profile: Profile | None = None
    previews: Operation = DENOISE_STEP
    """The forward of previews (`preview_operation`)."""
    cost: TrainingCost = TrainingCost(1, 0)
    train_batch: int = 1
    _is_training: bool = False

    def step(self, rows: int, capacity: int, degree: int, is_exact: bool = True) -> float:
        assert self.profile is not None
        return self.profile.seconds(DENOISE_STEP if is_exact else self.previews, rows, degree) * self.slowness

    def part(self, rows: int, degree: int, is_exact: bool = True) -> float:
        return self.step(rows, rows, degree, is_exact)

    def image(self, size: Size) -> tuple[Size, int]:
        assert self.profile is not None
        return Size(self.profile.height, self.profile.width), self.profile.tokens

    def decode(self, pictures: int) -> float:
        assert self.profile is not None
        return self.profile.seconds(DECODE, pictures) * self.slowness

    def roll(self) -> float:
        if not self._is_training:
            return 0.0
        self._is_training = False
        return self._seconds(Operation.ROLE_SWITCH)

    def switch(self) -> float:
        return 0.0 if self._is_training else self._seconds(Operation.ROLE_SWITCH)

    def train(self, order: m.Train) -> float:
        """Seconds of an update or a part of it; the change back to rollouts is charged by `roll`."""
        switch_s, self._is_training = self.switch(), True
        kept = sum(item.kept for item in order.items)
        seconds = sum(map(self._run_s, self.cost.runs(-(-kept // order.ranks))))
        if order.is_final:
            seconds += self._seconds(Operation.OPTIMIZER_STEP, degree=order.ranks)
        return seconds * self.slowness + switch_s

    def publish(self) -> float:
        return self._seconds(Operation.PUBLISH)

    def restore(self) -> float:
        return self._seconds(Operation.NODE_FETCH)

    def snapshot(self) -> float:
        return self._seconds(Operation.SNAPSHOT)

    def save(self) -> float:
        return self._seconds(Operation.CHECKPOINT)

    def _run_s(self, rows: int) -> float:
        batches, rest = divmod(rows, self.train_batch)
        return batches * self._train_batch_s(self.train_batch) + (self._train_batch_s(rest) if rest else 0.0)

    def _train_batch_s(self, rows: int) -> float:
        forwards_s = self.cost.forwards * self._seconds(Operation.DENOISE_STEP, rows) if self.cost.forwards else 0.0
        return self._seconds(Operation.TRAIN_TIMESTEP, rows) + forwards_s

    def _seconds(self, operation: Operation, batch: int = 1, degree: int = 1) -> float:
        assert self.profile is not None
        return self.profile.seconds(operation, batch, degree)
