"""Simulated machines with the durations of a profile: the pace of every worker, and a queue of judges per node."""

import asyncio
import heapq

from spotlight.compute.profiling.pace import Pace, ProfiledPace, TrainingCost, preview_operation
from spotlight.config import RunConfig
from spotlight.control.profiles import Operation, Profile, efficient_batch
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import Request, SlotClass
from spotlight.sim.fault_policy import NoFaults, Tempo

LATENCY_S = 0.001
REWARD = Operation.REWARD
"""Looked up once, because every sample needs it."""


class ProfiledPolicy(NoFaults):
    """Durations of a profile and no faults except the market's."""

    never_faults = True

    def __init__(self, profile: Profile, config: RunConfig) -> None:
        heartbeat_s = config.cluster.heartbeat_s
        super().__init__(Tempo(heartbeat_s=heartbeat_s, latency_s=LATENCY_S, restart_s=1.0))
        self._profile = profile
        self._cost = TrainingCost.of(config.algorithm, config.rollout, config.train.batches_over)
        self._previews = preview_operation(profile, config.explore.precision)
        self._connect_s = profile.seconds(Operation.REGROUP) if config.cluster.slots > 1 else 0.0
        self._train_batch = efficient_batch(profile, Operation.TRAIN_TIMESTEP)
        self._judges = min((term.processes for term in config.reward.terms), default=max(1, config.reward.processes))
        self._busy: dict[NodeId, list[float]] = {}
        """Time at which each judge of a node is free, as a heap."""
        self._loop = asyncio.get_running_loop()

    def pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        profile, previews = self._profile, self._previews
        return ProfiledPace(
            step_s=profile.seconds(Operation.DENOISE_STEP),
            start_s=profile.seconds(Operation.WORKER_START),
            load_s=profile.seconds(Operation.STORE_LOAD),
            adopt_s=profile.seconds(Operation.ADOPT),
            copy_s=profile.seconds(Operation.PEER_COPY),
            connect_s=self._connect_s,
            train_s=profile.seconds(Operation.TRAIN_TIMESTEP),
            heartbeat_s=self.tempo.heartbeat_s,
            rounds=previews is not Operation.DENOISE_STEP,
            previews=previews,
            runs_ahead=True,
            profile=profile,
            cost=self._cost,
            train_batch=self._train_batch,
        )

    def fetch_s(self, node: NodeId) -> float:
        return self._profile.node_copy_s

    def score_s(self, request: Request, node: NodeId) -> float:
        """Seconds until the sample is scored, including the wait for a judge of its node."""
        now = self._loop.time()
        judges = self._busy.get(node)
        if judges is None:
            judges = self._busy[node] = [0.0] * self._judges
        free_at = judges[0]
        done = (free_at if free_at > now else now) + self._profile.seconds(REWARD)
        heapq.heapreplace(judges, done)
        return done - now
