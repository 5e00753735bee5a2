"""Simulated machines that are as fast as a profile says: the pace of every worker, and judges that take their turn.

Training is charged as data-parallel: every rank takes an equal share of the image-timesteps in batches of the size that
the profile finds efficient; in the end, which is the last part of a step that comes in parts, all join in one optimizer
step. Batches over pairs take image-timesteps as they come, batches over samples one timestep of a part's samples after
the other, which leaves them small where parts are. Forwards that the loss needs beside the trained one (NFT's behaviour
policy, a reference for the KL term) are charged as denoising steps, a change of role when it is made. A worker takes up
weights that it trained itself from its own memory; all others fetch them. A checkpoint holds its trainer for the
snapshot, is written beside its other work and told of when its own time, which contains the snapshot, is over.
"""

import asyncio
import heapq
from dataclasses import dataclass

from spotlight.compute.train.config import BatchesOver, FlowGrpoConfig
from spotlight.config import RunConfig
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core import messages as m
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass, WeightsId
from spotlight.runtime.sim.fate import Calm, Tempo
from spotlight.runtime.sim.pace import Pace

NEEDED = (
    *(Operation.DENOISE_STEP, Operation.TRAIN_TIMESTEP, Operation.OPTIMIZER_STEP, Operation.DECODE, Operation.REWARD),
    *(Operation.PUBLISH, Operation.NODE_FETCH, Operation.WORKER_START, Operation.ROLE_SWITCH, Operation.CHECKPOINT),
)
"""What every simulated run is charged for."""
DENOISE_STEP, PREVIEW_STEP = Operation.DENOISE_STEP, Operation.PREVIEW_STEP
DECODE, REWARD = Operation.DECODE, Operation.REWARD
"""Looked up once: they are asked for at every step."""
LATENCY_S = 0.001


@dataclass(frozen=True)
class TrainingCost:
    """What one image costs to train on."""

    timesteps: int
    forwards: int
    """Of other weights than theta, per timestep."""
    passes: int = 1
    """Rows of a forward per image: 2 with guidance."""
    over: BatchesOver = BatchesOver.PAIRS

    @classmethod
    def of(cls, config: RunConfig) -> "TrainingCost":
        algorithm = config.algorithm
        reference = int(algorithm.kl_weight > 0)
        passes = 1 if config.rollout.guidance == 1.0 else 2
        if isinstance(algorithm, FlowGrpoConfig):
            return cls(config.rollout.window_size, reference, passes, config.train.batches_over)
        # A path has no more timesteps than steps, as the loss counts them.
        timesteps = min(algorithm.timesteps_per_sample, config.rollout.steps)
        return cls(timesteps, 1 + reference, passes, config.train.batches_over)

    def runs(self, images: int) -> list[int]:
        """Rows that batches are cut from, one run after the other."""
        rows = images * self.passes
        return [rows * self.timesteps] if self.over is BatchesOver.PAIRS else [rows] * self.timesteps


@dataclass
class ProfiledPace(Pace):
    """One worker, as fast as the profile says."""

    profile: Profile | None = None
    cost: TrainingCost = TrainingCost(1, 0)
    train_batch: int = 1
    _is_training: bool = False

    def step(self, rows: int, capacity: int, degree: int, is_exact: bool = True) -> float:
        assert self.profile is not None
        return self.profile.seconds(DENOISE_STEP if is_exact else PREVIEW_STEP, rows, degree) * self.slowness

    def part(self, rows: int, degree: int, is_exact: bool = True) -> float:
        return self.step(rows, rows, degree, is_exact)

    def load(self, weights: WeightsId, is_held: bool) -> float:
        return 0.0 if is_held else super().load(weights, is_held)

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
        """A part of an update, or all of it; it goes back to rolling out when it does."""
        self._trains(order)
        switch_s, self._is_training = self.switch(), True
        kept = sum(item.kept for item in order.items)
        seconds = sum(map(self._run_s, self.cost.runs(-(-kept // order.ranks))))
        if order.is_final:
            seconds += self._seconds(Operation.OPTIMIZER_STEP, degree=order.ranks)
        return seconds * self.slowness + switch_s

    def publish(self, order: m.Publish) -> float:
        super().publish(order)
        return self._seconds(Operation.PUBLISH)

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


class ProfiledFate(Calm):
    """Nothing goes wrong but what the market does, and everything takes as long as the profile says."""

    is_calm = True

    def __init__(self, profile: Profile, config: RunConfig) -> None:
        heartbeat_s = config.cluster.heartbeat_s
        super().__init__(Tempo(heartbeat_s=heartbeat_s, latency_s=LATENCY_S, restart_s=1.0))
        self._profile = profile
        self._cost = TrainingCost.of(config)
        self._cluster = config.cluster
        self._train_batch = efficient_batch(profile, Operation.TRAIN_TIMESTEP)
        self._judges = max(1, config.reward.processes)
        self._busy: dict[NodeId, list[float]] = {}
        """When each judge of a node is free again, a heap."""
        self._loop = asyncio.get_running_loop()

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        profile = self._profile
        return ProfiledPace(
            step_s=profile.seconds(Operation.DENOISE_STEP),
            start_s=profile.seconds(Operation.WORKER_START),
            load_s=profile.seconds(Operation.NODE_FETCH),
            adopt_s=profile.seconds(Operation.ADOPT),
            train_s=profile.seconds(Operation.TRAIN_TIMESTEP),
            heartbeat_s=self.tempo.heartbeat_s,
            slowness=1 / self._cluster.speed(slot_class),
            rounds=Operation.PREVIEW_STEP in profile.operations,
            runs_ahead=True,
            profile=profile,
            cost=self._cost,
            train_batch=self._train_batch,
        )

    def score_s(self, request: Request, node: NodeId) -> float:
        """Pictures wait for a judge of their node."""
        now = self._loop.time()
        judges = self._busy.get(node)
        if judges is None:
            judges = self._busy[node] = [0.0] * self._judges
        free_at = judges[0]
        done = (free_at if free_at > now else now) + self._profile.seconds(REWARD)
        heapq.heapreplace(judges, done)
        return done - now
