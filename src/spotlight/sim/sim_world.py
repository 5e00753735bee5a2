"""All simulated machines of a run: nodes that come, are warned and go, and their connections to the controller.

The connected controller is the real one (`controller.hub.Hub`). If a trace is kept, every message is sent as bytes.
After each message that reaches the controller, `checked` is called, which checks invariants.

    world.plug(hub, node_specs)      nodes start and connect
    world.unplug()                   the controller is gone; all nodes end at once
"""

import asyncio
from collections.abc import Callable, Sequence

from spotlight.compute.rewards.config import Term
from spotlight.control.ledger.states import SampleState
from spotlight.control.outside import Outgoing
from spotlight.controller.hub import Hub
from spotlight.core import messages as m
from spotlight.core.blobs import BlobRef
from spotlight.core.crew_messages import Crewed
from spotlight.core.node_spec import NodeSpec
from spotlight.core.types import NodeId, WorkerId
from spotlight.core.work import NoticeKind, RequestId, SlotClass, WeightsId
from spotlight.node.notices.notice import POOL, Notice
from spotlight.sim.crash_points import Broken
from spotlight.sim.fakes import read_flight
from spotlight.sim.fault_policy import NoFaults
from spotlight.sim.frames import HANG_UP, Carry, Frame, as_bytes
from spotlight.sim.machine_settings import SimMachineSettings
from spotlight.sim.message_trace import MessageTrace, line_of
from spotlight.sim.numerics import HashNumerics, Numerics
from spotlight.sim.sim_gang import SimGangs
from spotlight.sim.sim_node import SimNode
from spotlight.sim.storage import MISSING, SimStorage


class SimWorld:
    """The machines, and the results that they owe."""

    def __init__(
        self,
        policy: NoFaults,
        storage: SimStorage,
        trace: MessageTrace,
        is_exact: bool,
        machines: SimMachineSettings | None = None,
        numerics: Numerics | None = None,
        rewards: Sequence[Term] = (Term(name="simulated"),),
    ) -> None:
        self.policy = policy
        self.rewards = rewards
        self._rewards_down: dict[str, float] = {}
        """Time until which a reward cannot score, by its key."""
        self.numerics = numerics or HashNumerics(rewards)
        self.storage = storage
        self.trace = trace
        self.gangs = SimGangs()
        self.is_exact = is_exact
        self.machines = machines or SimMachineSettings()
        self.nodes: dict[str, SimNode] = {}
        """Live nodes by the name that they keep over all incarnations."""
        self._by_id: dict[NodeId, SimNode] = {}
        """Live nodes by incarnation."""
        self.owed: dict[WorkerId, dict[RequestId, int]] = {}
        """Attempts granted to a worker that no reply has ended; maintained only if a trace is kept."""
        self.warned: dict[NodeId, NoticeKind | None] = {}
        """Notices in force that have reached the controller, likewise."""
        self.carry: Carry | None = as_bytes() if trace.is_kept else None
        self.checked: Callable[[], None] | None = None
        self.failed: Callable[[BaseException], None] = lambda error: None
        """Called with an error that a message made the controller raise."""
        self.events = 0
        self.crews = 0
        """Number of crews of two or more that nodes reported."""
        self.discards = 0
        """Number of orders to drop previews."""
        self._loop = asyncio.get_running_loop()
        self._hub: Hub | None = None
        self._wanted: dict[str, NodeSpec] = {}
        self._incarnations: dict[str, int] = {}
        self._dying: dict[NodeId, SimNode] = {}
        self._given: dict[NodeId, dict[str, NoticeKind | None]] = {}
        """Notices that each source gave each node; None: withdrawn."""
        self._last_sent: m.AnyMessage | None = None
        self._away: dict[str, set[int]] = {}
        """Slots taken from a node; its next incarnation lacks them too."""

    @property
    def now(self) -> float:
        return self._loop.time()

    # -- the controller ------------------------------------------------------------------------------------------------

    def plug(self, hub: Hub, specs: Sequence[NodeSpec]) -> None:
        self._hub = hub
        hub.kill = self._kill_as_ordered
        for spec in specs:
            self.add(spec)

    def unplug(self) -> None:
        """No orphan survives the controller."""
        self._hub = None
        for node in [*self.nodes.values(), *self._dying.values()]:
            node.die()
            node.up.cut()
        self.nodes.clear()
        self._by_id.clear()
        self._dying.clear()
        self._wanted.clear()
        self.owed.clear()

    def send(self, outgoing: Outgoing) -> None:
        """Send a message of the hub to its node."""
        node = self._by_id.get(outgoing.node)
        self.events += 1
        self._last_sent = outgoing.message
        if self.trace.is_kept:
            self._record_sent(outgoing)
        self.discards += isinstance(outgoing.message, m.Discard)
        if node is not None:
            envelope = m.Envelope(outgoing.worker, outgoing.message)
            node.down.put(envelope if self.carry is None else self.carry(envelope), b"")

    def arrived(self, node: NodeId, frame: Frame, blob: bytes) -> None:
        """Pass one frame of a node, or the end of its connection, to the hub."""
        if self._hub is not None:
            self._call_controller(self._receive, self._hub, node, frame)

    def _receive(self, hub: Hub, node: NodeId, frame: Frame) -> None:
        if frame is None:
            self._hung_up(hub, node)
            return
        self.events += 1
        message = frame.message
        if self.trace.is_kept:
            self._record_received(node, frame.worker, message)
            self._check_flights(hub, message)
        if isinstance(message, m.NodeHello):
            hub.node_joined(message)
        elif self.trace.is_kept and isinstance(message, m.Commit | m.HandBack | m.Result):
            self._receive_of_attempt(hub, node, frame, message)
        else:
            if isinstance(message, Crewed):
                self.crews += len(message.crews)
            hub.receive(node, frame)

    def machine_failed(self, error: BaseException) -> None:
        self.failed(error)

    # -- machines ------------------------------------------------------------------------------------------------------

    def add(self, spec: NodeSpec) -> None:
        """Start the node, now and after every loss."""
        self._wanted[spec.name] = spec
        if spec.name not in self.nodes:
            self._start(spec.name)

    def remove(self, name: str) -> None:
        """Do not start the node again after its next loss."""
        self._wanted.pop(name, None)

    def kill(self, name: str, loses_messages: bool = False) -> None:
        """Kill all processes of the node; with `loses_messages` those in transit are lost too."""
        node = self.nodes.pop(name, None)
        if node is None:
            return
        del self._by_id[node.id]
        self._note(f"!! {node.id} is killed")
        if loses_messages:
            node.up.drop_all()
        node.die()
        self._dying[node.id] = node
        node.up.put(HANG_UP, b"")
        self._loop.call_later(self.policy.tempo.return_s, self._start, name)

    async def _kill_as_ordered(self, worker: WorkerId) -> None:
        self.kill_worker(worker)

    def kill_worker(self, worker: WorkerId) -> None:
        for node in self.nodes.values():
            for number, known in list(node.workers.items()):
                if known.id == worker:
                    self._note(f"!! {worker} is killed")
                    node.kill_on(number)

    def take_slot(self, name: str, number: int) -> None:
        """Take one slot and its worker from a node until `give_slot`; the node stays."""
        self._note(f"!! slot {number} of {name} is taken")
        self._away.setdefault(name, set()).add(number)
        if name in self.nodes:
            self.nodes[name].take(number)

    def give_slot(self, name: str, number: int) -> None:
        self._note(f"!! slot {number} of {name} is back")
        self._away.get(name, set()).discard(number)
        if name in self.nodes:
            self.nodes[name].give(number)

    def warn(self, name: str, kind: NoticeKind, seconds: float, source: str = POOL) -> None:
        if name in self.nodes:
            self._note(f"!! {self.nodes[name].id} is warned by {source}: {kind.value}, {seconds:.1f} s")
            self._notice(self.nodes[name], Notice(kind=kind, source=source, deadline=self.now + seconds))

    def withdraw(self, name: str, kind: NoticeKind, source: str = POOL) -> None:
        """Withdraw the notice that this source gave."""
        if name in self.nodes:
            self._note(f"!! the notice of {source} for {self.nodes[name].id} is withdrawn")
            self._notice(self.nodes[name], Notice(kind=kind, source=source, deadline=self.now, withdrawn=True))

    def _notice(self, node: SimNode, notice: Notice) -> None:
        """Give the node a source's notice, and check that the most severe one of all its sources is in force."""
        given = self._given.setdefault(node.id, {})
        given[notice.source] = None if notice.withdrawn else notice.kind
        in_force = node.warn(notice)
        expected = next((kind for kind in reversed(NoticeKind) if kind in given.values()), None)
        if (in_force and in_force.kind) is not expected:
            self.failed(Broken(f"{node.id} has {in_force} in force, but its sources give {given}"))

    def freeze(self, worker: WorkerId, seconds: float) -> None:
        for node in self.nodes.values():
            for known in node.workers.values():
                if known.id == worker:
                    self._note(f"!! {worker} is silent for {seconds:.1f} s")
                    known.freeze(seconds)

    def slow(self, worker: WorkerId, factor: float) -> None:
        for node in self.nodes.values():
            for known in node.workers.values():
                if known.id == worker:
                    self._note(f"!! {worker} is {factor:g} times slower")
                    known.slow(factor)

    def kill_reward_process(self, name: str) -> None:
        if name in self.nodes:
            self._note(f"!! the reward process of {self.nodes[name].id} is killed")
            self.nodes[name].kill_reward_process()

    def lose_reward(self, key: str, seconds: float) -> None:
        """Make a reward unavailable on all nodes, as an endpoint that is down."""
        self._note(f"!! the reward {key} is unavailable for {seconds:.1f} s")
        self._rewards_down[key] = max(self._rewards_down.get(key, 0.0), self.now + seconds)

    def is_reward_down(self, key: str) -> bool:
        return self.now < self._rewards_down.get(key, 0.0)

    def stall(self, name: str, seconds: float) -> None:
        """Stall the connection in both directions."""
        if name in self.nodes:
            self._note(f"!! the connection of {self.nodes[name].id} stalls for {seconds:.1f} s")
            self.nodes[name].up.stall(seconds)
            self.nodes[name].down.stall(seconds)

    def cut(self, name: str, away_s: float) -> None:
        """Break the connection; the node reaches the controller again after `away_s`."""
        link = self.nodes[name].link if name in self.nodes else None
        if link is not None:
            self._note(f"!! the connection of {self.nodes[name].id} is cut for {away_s:.1f} s")
            link.cut(away_s)

    def half_open(self, name: str, away_s: float) -> None:
        """Swallow all messages in both directions."""
        link = self.nodes[name].link if name in self.nodes else None
        if link is not None:
            self._note(f"!! the connection of {self.nodes[name].id} swallows everything for {away_s:.1f} s")
            link.half_open(away_s)

    def link_broke(self, node: NodeId) -> None:
        self._note(f"!! {node} is not connected")
        if self._hub is not None:
            self._hub.node_away(node)

    def link_resumed(self, node: NodeId) -> None:
        self._note(f"!! {node} is connected again")
        if self._hub is not None:
            self._call_controller(self._hub.node_back, node)

    def restore_speed(self) -> None:
        """End all slowness."""
        for node in self.nodes.values():
            for worker in node.workers.values():
                worker.pace.slowness = 1.0

    def names(self, slot_class: SlotClass | None = None) -> list[str]:
        """Names of the live nodes."""
        if slot_class is None:
            return sorted(self.nodes)
        return sorted(name for name, node in self.nodes.items() if node.spec.slot_class is slot_class)

    def worker_ids(self, slot_class: SlotClass | None = None) -> list[WorkerId]:
        return [worker for name in self.names(slot_class) for worker in self.nodes[name].worker_ids()]

    def applied(self, worker: WorkerId, weights: WeightsId) -> str | None:
        """Digest of a set that a live worker computes with; None if it has dropped the set."""
        node = self._by_id.get(NodeId(worker.partition("/")[0]))
        known = () if node is None else node.workers.values()
        return next((one.holds.get(weights) for one in known if one.id == worker), None)

    def note(self, what: str) -> None:
        self._note(f"!! {what}")

    # -- inside --------------------------------------------------------------------------------------------------------

    def _call_controller(self, call: Callable[..., None], *args: object) -> None:
        """Call code of the controller; what it raises, such as a power cut, ends the controller alone."""
        try:
            call(*args)
        except BaseException as error:
            self._hub = None
            self.failed(error)
        else:
            if self.checked is not None:
                self.checked()

    def _record_sent(self, outgoing: Outgoing) -> None:
        self.trace.add(self.now, f"-> {outgoing.worker or outgoing.node} {line_of(outgoing.message)}")
        if isinstance(outgoing.message, m.Grant) and outgoing.worker is not None:
            owed = self.owed.setdefault(outgoing.worker, {})
            owed.update({granted.request.id: granted.attempt for granted in outgoing.message.leases})

    def _hung_up(self, hub: Hub, node: NodeId) -> None:
        self._dying.pop(node, None)
        self._note(f"<- {node} hung up")
        for worker in [worker for worker in self.owed if worker.startswith(f"{node}/")]:
            del self.owed[worker]
        hub.unreachable.pop(node, None)
        hub.node_lost(node, "connection lost")

    def _check_flights(self, hub: Hub, message: m.AnyMessage) -> None:
        """A commit names the steps of its part; bytes that a live attempt needs are never deleted.

        A grant that came too late may find none.
        """
        match message:
            case m.Commit(flight=BlobRef(path=path)) if path in self.storage.files:
                (part,) = read_flight(self.storage.files[path])
                if (part.step, part.since) != (message.step, message.since):
                    raise Broken(f"{message} has the part of steps {part.since} to {part.step}")
            case m.Failed(request=str(request), problem=problem) if problem.endswith(MISSING):
                if hub.dispatcher.ledger.is_live(request, message.attempt):
                    raise Broken(f"{request} attempt {message.attempt} lacks its flight: {problem}")

    def _receive_of_attempt(
        self, hub: Hub, node: NodeId, frame: m.Envelope, message: m.Commit | m.HandBack | m.Result
    ) -> None:
        """Pass on a message about an attempt. If it is not the live one, the live one goes on, and a known worker's
        commit is fenced."""
        ledger, request = hub.dispatcher.ledger, message.request
        is_late = not ledger.is_live(request, message.attempt, frame.worker)
        is_leased = ledger.state_or_dropped(request) is SampleState.LEASED
        live = (ledger.attempt(request), ledger.holder(request)) if is_late and is_leased else None
        is_known = frame.worker in hub.dispatcher.directory.workers
        self._last_sent = None
        hub.receive(node, frame)
        if live is not None and not ledger.is_live(request, *live):
            raise Broken(f"{message} of {frame.worker} ends attempt {live[0]}, which is live on {live[1]}")
        if is_late and is_known and isinstance(message, m.Commit) and not isinstance(self._last_sent, m.Fenced):
            raise Broken(f"{message} of an attempt that is not the live one is not fenced")

    def _record_received(self, node: NodeId, worker: WorkerId | None, message: m.AnyMessage) -> None:
        self.trace.add(self.now, f"<- {worker or node} {line_of(message)}")
        match message:
            case m.Result() | m.HandBack() | m.Failed() if worker is not None and message.request is not None:
                owed = self.owed.get(worker, {})
                if owed.get(message.request) == message.attempt:
                    del owed[message.request]
            case m.Gone():
                self.owed.pop(message.worker, None)
            case m.Warned():
                self.warned[node] = None if message.withdrawn else message.kind

    def _start(self, name: str) -> None:
        spec = self._wanted.get(name)
        if spec is None or name in self.nodes or self._hub is None:
            return
        self._incarnations[name] = self._incarnations.get(name, 0) + 1
        node = spec.incarnation(self._incarnations[name])
        self.nodes[name] = self._by_id[node] = SimNode(node, spec, self, away=self._away.get(name, ()))

    def _note(self, what: str) -> None:
        self.events += 1
        self.trace.add(self.now, what)
