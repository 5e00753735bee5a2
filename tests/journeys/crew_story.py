"""A scripted run with one sample on a spot node of four slots: the idle slots form a crew with the busy one.

with CrewStory() as story:
    leader, *followers = story.until_crew(4)
    story.crash_at(CrashPoint.IN_FORWARD, followers[0])
    story.until_crew(3)
    story.end()
"""

from typing import Any

import msgspec
from story import COMMIT_EVERY, Story, slot_of

from spotlight.control.ledger.tally import AuditReport
from spotlight.core.events import Accepted, Crewing, Evaluated, Leased, Released, WorkerLost
from spotlight.core.types import WorkerId
from spotlight.core.work import RequestId, SlotClass
from spotlight.sim.crash_points import CrashPoint
from spotlight.sim.fault_policy import Tempo
from spotlight.sim.setting import SPEED_UPS
from spotlight.sim.sim_node import SimNode
from spotlight.sim.sim_worker import Pace, SimWorker

STEPS = 60
"""Steps of a sample: a crew of four still has most of them left when a fault occurs."""
SPOT = "spot-1"
FOR_EVER_S = 1e6
SLOW_RETURN = Tempo(restart_s=30.0)
"""A lost slot does not return before the test ends."""


class CrewStory(Story):
    """One sample on the reserved slot, one on the spot node, no previews."""

    def __init__(
        self,
        slots: int = 4,
        tempo: Tempo = SLOW_RETURN,
        elastic: dict[str, Any] | None = None,
        reserved_rows: int = 1,
        **config: Any,
    ) -> None:
        crews = {"speed_ups": SPEED_UPS, "hysteresis_s": 0.5, "measure": False, **(elastic or {})}
        cluster = {"commit_every": COMMIT_EVERY, "heartbeat_s": 0.5, "silence_s": 8.0, "slots": slots, "elastic": crews}
        sections = {
            "iterations": 2,
            "rollout": {"prompts": 1, "group_size": 2, "steps": STEPS},
            "explore": {"enabled": "off"},
            "cluster": cluster,
            **config,
        }
        super().__init__(spot=1, rows=1, tempo=tempo, slots=slots, **sections)
        self.specs[0] = msgspec.structs.replace(self.specs[0], rows=reserved_rows)
        self._usual_pace = self.policy.pace
        self.policy.pace = self._pace
        self.loads_slowly: dict[WorkerId, float] = {}
        """Seconds that a worker takes to load a set of weights."""
        self.slowness: dict[int, float] = {}
        """Slowness of workers by slot of the spot node."""

    # -- actions -------------------------------------------------------------------------------------------------------

    def until_crew(self, degree: int) -> tuple[WorkerId, ...]:
        """Advance until a crew of this degree works on a sample and the first evaluation is done."""
        self.until(lambda: self.recorded(Evaluated) and len(self.crew) == degree and self.world.owed.get(self.crew[0]))
        return self.crew

    def until_accepted(self, request: RequestId) -> Accepted:
        self.until(lambda: self.recorded(Accepted, request=request))
        (accepted,) = self.recorded(Accepted, request=request)
        return accepted

    def kill_workers(self, *workers: WorkerId) -> None:
        for worker in workers:
            self.world.kill_worker(worker)

    # -- reads ---------------------------------------------------------------------------------------------------------

    @property
    def node(self) -> SimNode:
        return self.world.nodes[SPOT]

    def sim_worker(self, worker: WorkerId) -> SimWorker:
        (found,) = (known for known in self.node.workers.values() if known.id == worker)
        return found

    @property
    def crew(self) -> tuple[WorkerId, ...]:
        """The spot node's newest crew in the journal; empty if there is none."""
        events = self.recorded(Crewing)
        return events[-1].crews[0] if events and events[-1].crews else ()

    def sample_of(self, worker: WorkerId) -> RequestId:
        """The request that the worker holds."""
        (request,) = self.world.owed[worker]
        return request

    def steps_taken(self, *workers: WorkerId) -> int:
        """Denoising steps that these workers completed, redone ones included."""
        return sum(self.policy.passed[CrashPoint.AT_BOUNDARY, worker] for worker in workers)

    def lost(self) -> set[WorkerId]:
        return {event.worker for event in self.recorded(WorkerLost)}

    def is_undisturbed(self, request: RequestId, report: AuditReport) -> bool:
        """True if one attempt made the sample and no step was redone."""
        one_attempt = len(self.recorded(Leased, request=request)) == 1 == len(self.recorded(Accepted, request=request))
        return one_attempt and not self.recorded(Released, request=request) and report.waste.redone == 0

    # -- internals -----------------------------------------------------------------------------------------------------

    def _pace(self, worker: WorkerId, slot_class: SlotClass) -> Pace:
        pace = self._usual_pace(worker, slot_class)
        pace.load_s = self.loads_slowly.get(worker, pace.load_s)
        if slot_class is SlotClass.SPOT:
            pace.slowness = self.slowness.get(slot_of(worker), 1.0)
        return pace
