"""Machines of every pool for a real run: they come, are killed, get notices, and lose their network.

`Cables` are network namespaces; where none can be made, `RelayNetwork` has a TCP relay between each machine and the
run, and Ray nodes have no network to lose.
"""

import importlib.util
import os
import signal
import socket
from pathlib import Path
from typing import Protocol

import pytest
from joined_machine import JoinedMachine
from live_run import LiveRun
from node_world import living, marked
from relays import Relay

from benchmarks.lib.namespaces import Namespaces, refusal
from benchmarks.lib.ray_cluster import LocalRayCluster

LOOPBACK = "127.0.0.1"


class PoolWorld(Protocol):
    """The machines of one run."""

    names: tuple[str, ...]
    """Names of its machines; the first one is there from the start."""
    lost: str
    """How the cause begins for a machine that is killed."""
    drained: str
    """The same after a notice."""

    def start(self, run: LiveRun) -> None: ...

    def add(self, name: str) -> None:
        """The machine comes, for the first time or after a kill."""

    def kill(self, name: str) -> None:
        """SIGKILL, as a provider does."""

    def warn(self, name: str, seconds: float) -> None:
        """A notice, from the source that this pool has."""

    def cut(self, name: str) -> None:
        """Everything that the machine sends or is sent is lost; no connection is closed."""

    def mend(self, name: str) -> None: ...

    def close(self) -> None: ...


def agent_of(mark: str, name: str) -> int:
    """The agent of a node, among the processes with this mark."""
    for pid in living(mark):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"spotlight.node.agent" in command and any(part.endswith(f"/{name}.json".encode()) for part in command):
            return pid
    raise AssertionError(f"{name} has no agent")


class Cables(Namespaces):
    """A network of namespaces."""

    port = 0
    """Any."""

    def gateway(self, name: str) -> str:
        """Address at which the machine reaches the run."""
        return self.host


class RelayNetwork:
    """The same over relays: a machine dials 127.0.1.N instead of the run's own address."""

    host = LOOPBACK

    def __init__(self) -> None:
        self.port = _free_ports()
        self._relays: dict[str, list[Relay]] = {}

    def add(self, name: str) -> str:
        if name not in self._relays:
            place = f"127.0.1.{len(self._relays) + 1}"
            # Controller and blobs.
            ports = (self.port, self.port + 1)
            self._relays[name] = [Relay(lambda port=port: (LOOPBACK, port), place, port) for port in ports]
        return self.gateway(name)

    def gateway(self, name: str) -> str:
        return f"127.0.1.{list(self._relays).index(name) + 1}"

    def command(self, name: str) -> tuple[str, ...]:
        return ()

    def cut(self, name: str) -> None:
        for relay in self._relays[name]:
            relay.freeze()

    def mend(self, name: str) -> None:
        for relay in self._relays[name]:
            relay.thaw()

    def close(self) -> None:
        for relays in self._relays.values():
            for relay in relays:
                relay.close()


def network() -> Cables | RelayNetwork:
    return RelayNetwork() if refusal() else Cables()


def _free_ports() -> int:
    """A port that is free, as the next one is."""
    while True:
        with socket.create_server((LOOPBACK, 0)) as first:
            port = first.getsockname()[1]
            try:
                socket.create_server((LOOPBACK, port + 1)).close()
            except OSError:
                continue
            return int(port)


class LocalWorld:
    """Simulated nodes on the run's machine, connected through a relay each; the pool starts dead ones again."""

    names: tuple[str, ...] = ("spot-1", "spot-2", "spot-3")
    lost = "connection lost"
    drained = "connection lost"

    def __init__(self) -> None:
        self.mark = marked()
        self._relays: dict[str, Relay] = {}
        self._notices = Path()

    def start(self, run: LiveRun) -> None:
        self._notices = run.folder
        self._relays = {name: Relay(run.door) for name in self.names}
        ports = {name: relay.port for name, relay in self._relays.items()}
        run.start_relayed(ports, "--cluster.spot", str(len(self.names)))

    def add(self, name: str) -> None:
        pass

    def kill(self, name: str) -> None:
        os.killpg(agent_of(self.mark, name), signal.SIGKILL)
        withdraw(self._notices, name)

    def warn(self, name: str, seconds: float) -> None:
        give_notice(self._notices, name, seconds)

    def cut(self, name: str) -> None:
        self._relays[name].freeze()

    def mend(self, name: str) -> None:
        self._relays[name].thaw()

    def close(self) -> None:
        for relay in self._relays.values():
            relay.close()


class SmallLocalWorld(LocalWorld):
    """The same with two nodes."""

    names = ("spot-1", "spot-2")


class JoinWorld:
    """Machines that join with `spotlight join`, each in a network of its own."""

    names: tuple[str, ...] = ("box-a", "box-b", "box-c")
    lost = "connection lost"
    drained = "connection lost"

    def __init__(self) -> None:
        self.mark = marked()
        self.network = network()
        self.machines: dict[str, JoinedMachine] = {}
        self._run: LiveRun | None = None

    @property
    def listen(self) -> tuple[str, str]:
        return "--cluster.listen", f"{self.network.host}:{self.network.port}"

    def start(self, run: LiveRun) -> None:
        self.serve(run)
        run.start("--cluster.pool", "join", "--cluster.spot", "3", *self.listen)
        self.add(self.names[0])

    def serve(self, run: LiveRun) -> None:
        """Machines join this run."""
        self._run = run

    def add(self, name: str) -> None:
        assert self._run is not None
        self.network.add(name)
        if name not in self.machines:
            self.machines[name] = JoinedMachine(self._run, name)
        self.machines[name].join(self.network.gateway(name), self.network.command(name))

    def kill(self, name: str) -> None:
        self.machines[name].kill()
        assert self._run is not None
        withdraw(self._run.folder, name)

    def warn(self, name: str, seconds: float) -> None:
        assert self._run is not None
        give_notice(self._run.folder, name, seconds)

    def cut(self, name: str) -> None:
        self.network.cut(name)

    def mend(self, name: str) -> None:
        self.network.mend(name)

    def close(self) -> None:
        for machine in self.machines.values():
            machine.close()
        self.network.close()


class RayWorld:
    """Nodes of a Ray cluster, each a raylet in a network of its own; with the head there are four raylets."""

    names: tuple[str, ...] = ("ray-a", "ray-b", "ray-c")
    lost = "node lost: "
    drained = "preempted: "

    def __init__(self, cables: Cables | RelayNetwork | None = None) -> None:
        if importlib.util.find_spec("ray") is None and os.environ.get("CI") != "true":
            pytest.skip("Ray is not installed")
        self.mark = marked()
        self.network = cables or network()
        namespaces = self.network if isinstance(self.network, Cables) else None
        self.cluster = LocalRayCluster(network=namespaces)
        self._environment = pytest.MonkeyPatch()
        for name, value in self.cluster.environment.items():
            self._environment.setenv(name, value)

    def start(self, run: LiveRun, *arguments: str) -> None:
        self.add(self.names[0])
        run.start("--cluster.pool", "ray", "--cluster.address", self.cluster.address, *arguments)

    def add(self, name: str) -> None:
        self.cluster.add(_ray_name(name))
        self.cluster.settle()

    def kill(self, name: str) -> None:
        self.cluster.kill(_ray_name(name))

    def warn(self, name: str, seconds: float) -> None:
        self.cluster.drain(_ray_name(name), seconds)

    def cut(self, name: str) -> None:
        self._cables().cut(_ray_name(name))

    def mend(self, name: str) -> None:
        self._cables().mend(_ray_name(name))

    def close(self) -> None:
        try:
            self.cluster.close()
        finally:
            self._environment.undo()
            self.network.close()

    def _cables(self) -> Cables:
        if not isinstance(self.network, Cables):
            pytest.skip(f"Ray nodes lose their network in namespaces alone ({refusal()})")
        return self.network


class RayAndJoinWorld(RayWorld):
    """A Ray node and a machine that joins, for one run."""

    names = ("ray-a", "box-a")

    def __init__(self) -> None:
        self.joining = JoinWorld()
        super().__init__(self.joining.network)

    def start(self, run: LiveRun, *arguments: str) -> None:
        self.joining.serve(run)
        super().start(run, *self.joining.listen)
        self.add("box-a")

    def add(self, name: str) -> None:
        self.joining.add(name) if name.startswith("box") else super().add(name)

    def kill(self, name: str) -> None:
        self.joining.kill(name) if name.startswith("box") else super().kill(name)

    def cut(self, name: str) -> None:
        self.joining.cut(name) if name.startswith("box") else super().cut(name)

    def mend(self, name: str) -> None:
        self.joining.mend(name) if name.startswith("box") else super().mend(name)

    def close(self) -> None:
        for machine in self.joining.machines.values():
            machine.close()
        super().close()


def _ray_name(name: str) -> str:
    return name.removeprefix("ray-")


def notices_of(folder: Path) -> str:
    """The setting by which nodes read notices from this folder."""
    return f"{{sources: ['file:{folder}/{{node}}.gone'], poll_s: 0.2}}"


def give_notice(folder: Path, name: str, seconds: float) -> None:
    (folder / f"{name}.part").write_text(f"{seconds:g}")
    (folder / f"{name}.part").rename(folder / f"{name}.gone")


def withdraw(folder: Path, name: str) -> None:
    (folder / f"{name}.gone").unlink(missing_ok=True)
