"""The machine's side of `spotlight join`: dials the controller, runs one node, and dials again when it has ended.

    DIALLING --Joined--> RUNNING --agent crashed, link lost--> DIALLING (within the grace)
        |                   |--drained, ordered to leave, signalled--> LEFT
        `--refused, or nothing listens for the grace--> ENDED

Invariant (tests/processes/test_any_pool.py): when this process ends in any way, none of the node's processes is left.
"""

import asyncio
import re
import signal
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from spotlight import __version__
from spotlight.core import join_messages as joins
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.errors import EnvironmentProblem, SpotlightError, Stopped, error_of
from spotlight.core.events import SCHEMA
from spotlight.core.link import GRACE_S
from spotlight.core.source_digest import source_digest
from spotlight.core.tls import open_pinned, split_address
from spotlight.core.work import SlotClass
from spotlight.node.launch import AgentLaunch, MachineLaunch
from spotlight.pools.devices import gpu_models, own_devices
from spotlight.pools.local import RESTARTS, STABLE_S
from spotlight.pools.machine import AgentEnd, Machine, MachineSettings
from spotlight.pools.tokens import TokenFile

DIAL_S = 10.0
"""Time limit of one attempt to join."""
PAUSE_S = 1.0
"""Pause between two attempts."""


@dataclass(frozen=True, kw_only=True)
class JoinOptions:
    """What the user asks for."""

    token_file: TokenFile
    name: str
    slot_class: SlotClass = SlotClass.SPOT
    slots: int = 0
    zone: str = ""
    from_ray: bool = False
    """Whether the run's Ray cluster has started this machine."""
    folder: Path
    """Folder for logs, spilled weights and the mirror of the run."""


def default_name() -> str:
    """A node name from the name of this machine."""
    return re.sub(r"[^a-z0-9]+", "-", socket.gethostname().lower())[:40].strip("-") or "machine"


def reached_at(launch: AgentLaunch, address: str) -> AgentLaunch:
    """The launch with the host that this machine has dialled, for the controller and for its blob server.

    The run may know itself by another address: behind a NAT, or behind a Service of Kubernetes.
    """
    host, blob_port = address.rpartition(":")[0], launch.blobs.rpartition(":")[2]
    return msgspec.structs.replace(launch, controller=address, blobs=f"{host}:{blob_port}")


class JoiningMachine:
    """`serve` runs until the run needs this machine no more, or the user ends it."""

    def __init__(self, options: JoinOptions, say: Callable[[str], None]) -> None:
        self._options = options
        self._say = say
        self._machine: Machine | None = None
        self._launch: AgentLaunch | None = None
        self._grace_s = GRACE_S
        self._end: asyncio.Future[AgentEnd] | None = None
        self._is_asked_to_stop = asyncio.Event()
        self._killing: list[asyncio.Future[None]] = []
        self._failed_starts = 0
        self._gpus: tuple[str, ...] = ()

    async def serve(self) -> None:
        """Return when the node has left in order; raises the reason why it could not join or go on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._asked_to_stop)
        self._gpus = await asyncio.to_thread(gpu_models)
        try:
            while not self._is_asked_to_stop.is_set():
                joined = await self._joined()
                if joined is None or await self._life(joined):
                    return
        finally:
            await asyncio.gather(*self._killing)
            if self._machine is not None:
                await self._machine.stop()
            await self._report_end()

    def _asked_to_stop(self) -> None:
        if self._is_asked_to_stop.is_set() and self._machine is not None:
            # Asked twice: nothing is handed back.
            self._killing = [asyncio.ensure_future(self._machine.kill(node)) for node in self._machine.nodes()]
        self._is_asked_to_stop.set()

    # -- dialling ------------------------------------------------------------------------------------------------------

    async def _joined(self) -> joins.Joined | None:
        """Join, within the grace; None if the user stops it before."""
        loop = asyncio.get_running_loop()
        address, began, wait_s = self._options.token_file.address, loop.time(), self._grace_s
        self._say(f"joining the run {self._options.token_file.run} at {address} as {self._options.name}")
        shown = ""
        while not self._is_asked_to_stop.is_set():
            problem: SpotlightError
            try:
                match await self._dialled(self._message()):
                    case joins.Joined() as joined:
                        return joined
                    case joins.JoinRefused() as refused:
                        problem = error_of(refused.exit_code, f"{address} refuses this machine: {refused.reason}")
                        wait_s = refused.wait_s
                    case _:
                        problem = self._unreachable("it closed the connection; it may run another version")
            except (OSError, TimeoutError, wire.WireError) as error:
                problem = self._unreachable(str(error) or "no reply")
                wait_s = self._grace_s
            if loop.time() + PAUSE_S > began + wait_s:
                raise problem
            if str(problem) != shown:
                shown = str(problem)
                self._say(f"trying for {wait_s:.0f} s: {shown}")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_asked_to_stop.wait(), PAUSE_S)
        return None

    def _unreachable(self, why: str) -> SpotlightError:
        address = self._options.token_file.address
        if self._launch is None:
            return EnvironmentProblem(
                f"no run can be reached at {address} ({why}); check the address, the firewall and that the run lives."
            )
        return Stopped(
            f"the run at {address} could not be reached for {self._grace_s:g} s ({why}), so it has stopped or the "
            "network is broken; join again when it is back."
        )

    def _message(self, leaves: bool = False) -> joins.Join:
        options = self._options
        return joins.Join(
            schema=SCHEMA,
            code=__version__,
            source=source_digest(),
            token=options.token_file.token,
            name=options.name,
            slot_class=options.slot_class,
            slots=options.slots,
            zone=options.zone,
            from_ray=options.from_ray,
            gpus=self._gpus,
            previous=self._launch.token if self._launch is not None else "",
            leaves=leaves,
        )

    async def _dialled(self, join: joins.Join) -> m.AnyMessage | None:
        """The controller's reply; None if it closes the connection without one."""
        async with asyncio.timeout(DIAL_S):
            host, port = split_address(self._options.token_file.address)
            reader, writer = await open_pinned(host, port, self._options.token_file.fingerprint, wire.STREAM_LIMIT)
            try:
                wire.write(writer, m.Envelope(None, join))
                reply = await wire.read(reader)
                return None if reply is None else reply[0].message
            finally:
                writer.close()

    async def _report_end(self) -> None:
        """Report that the node has left, so that the run does not wait for it; the run may be gone."""
        if self._launch is not None:
            with suppress(OSError, TimeoutError, SpotlightError):
                await self._dialled(self._message(leaves=True))

    # -- one life of the node ------------------------------------------------------------------------------------------

    async def _life(self, joined: joins.Joined) -> bool:
        """Run the node until it ends; False if it is to join again. Raises what ends the command."""
        received = MachineLaunch.from_bytes(joined.launch)
        agent = self._launch = reached_at(received.agent, self._options.token_file.address)
        self._grace_s = agent.grace_s
        # Before the imports, which take longer.
        devices = await asyncio.to_thread(own_devices, agent.spec, received.device, received.shares_devices)
        machine = await self._unless_stopped(self._started(received))
        if machine is None:
            self._say("left before the start was over")
            return True
        launch = self._launch = machine.completed(agent, devices)
        self._end = asyncio.get_running_loop().create_future()
        machine.run_agent(launch)
        shown = ", ".join(dict.fromkeys(device.name for device in devices))
        slots = f"{len(devices)} slot{'s' if len(devices) > 1 else ''}"
        self._say(f"joined as {joined.node}: {slots} on {shown}; log: {machine.logs}/{joined.node}.log")
        stopping = asyncio.create_task(self._is_asked_to_stop.wait())
        await asyncio.wait((self._end, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not self._end.done():
            self._say(f"leaving: {joined.node} hands back its samples")
            await machine.drain(joined.node)
            self._say("left")
            return True
        return self._is_over(self._end.result(), launch)

    async def _unless_stopped(self, starting: Coroutine[None, None, Machine]) -> Machine | None:
        """The started machine; None if the user stops it before, which cuts its imports short."""
        task, stopping = asyncio.create_task(starting), asyncio.create_task(self._is_asked_to_stop.wait())
        await asyncio.wait((task, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if task.done():
            return task.result()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return None

    def _is_over(self, end: AgentEnd, launch: AgentLaunch) -> bool:
        with suppress(OSError):
            leave = msgspec.json.decode(launch.farewell.read_bytes(), type=joins.Leave)
            if leave.exit_code:
                raise error_of(leave.exit_code, f"{end.node} leaves: {leave.reason}")
            self._say(f"{end.node} leaves: {leave.reason}")
            return True
        if end.status == 0:
            self._say(f"{end.node} was drained by the run")
            return True
        self._failed_starts = self._failed_starts + 1 if end.ran_s <= STABLE_S else 0
        problem = f"the agent of {end.node} ended with status {end.status}, see {end.log}"
        if self._failed_starts > RESTARTS:
            raise EnvironmentProblem(f"{problem}; it failed {self._failed_starts} times in a row, so look there.")
        self._say(f"{problem}; joining again")
        return False

    async def _started(self, received: MachineLaunch) -> Machine:
        """This machine with its nursery, which stays over all lives of the node."""
        if self._machine is None:
            options = self._options
            settings = MachineSettings(
                folder=options.folder,
                home=options.folder / "home",
                entry=received.entry,
                preload=received.preload,
                is_bare=received.device != "cpu",
                warm=received.warm,
                model=received.model,
                drain_s=received.agent.drain_s,
            )
            settings.home.mkdir(parents=True, exist_ok=True)
            self._machine = Machine(settings, self._agent_ended)
            self._say("starting: the workers' imports take some seconds")
            await self._machine.start()
        await self._machine.ensure_nursery()
        return self._machine

    def _agent_ended(self, end: AgentEnd) -> None:
        if self._end is not None and not self._end.done():
            self._end.set_result(end)
