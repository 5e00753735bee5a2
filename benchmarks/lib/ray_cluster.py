"""A small Ray cluster on this machine, in a folder of its own: several nodes that come, drain and die.

Its processes are started and ended by their ids; no other Ray on the machine is touched.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.lib.namespaces import Namespaces

STORE = 80 << 20
START_S = 120.0
LEFT_S = 20.0
ACTOR = "MachineActor"
QUICK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 10000,
    "health_check_failure_threshold": 6,
}
"""Finds a dead node in 2 s, where Ray's own settings take 15 s, and one without a network later than the run does."""
STARTED = "Ray runtime started."


class LocalRayCluster:
    """Nodes are processes of `ray start --block`, each with its own group."""

    def __init__(self, has_token: bool = False, is_quick: bool = True, network: Namespaces | None = None) -> None:
        """`is_quick`: it finds dead nodes sooner than Ray's own settings do. In a `network` each node is a machine of
        its own, and the head is this one."""
        # Short, because Ray's sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="sr", dir="/tmp"))
        (self.folder / "ray").mkdir()
        (self.folder / "home").mkdir()
        self.environment = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            # Ray runs its workers with a nice value of 15, which starves them on a busy machine.
            "RAY_worker_niceness": "0",
            "TMPDIR": str(self.folder),
        }
        if has_token:
            token = self.folder / "token"
            token.write_text(secrets.token_hex(32))
            token.chmod(0o600)
            self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._arguments: dict[str, tuple[str, ...]] = {}
        self._machines: list[tuple[int, str]] = []
        """With the times of their starts: the kernel uses numbers of processes again."""
        self._network = network
        self.address = ""
        config = [f"--system-config={json.dumps(QUICK)}"] if is_quick else []
        head = ("--head", "--port=0", "--num-cpus=0", "--include-dashboard=false", f"--temp-dir={self.folder}/ray")
        own = [f"--node-ip-address={network.host}"] if network is not None else []
        self._start("head", *head, *own, *config)
        self.address = self._head_address()

    def add(self, name: str, *arguments: str, labels: str = "spotlight=spot") -> None:
        """Start a node; does not wait for it."""
        marks = [f"--labels={labels}"] if labels else []
        if self._network is not None:
            marks.append(f"--node-ip-address={self._network.add(name)}")
            self._network.mend(name)
        self._start(name, f"--address={self.address}", f"--node-name={name}", "--num-cpus=1", *marks, *arguments)

    def settle(self) -> None:
        """Wait until all nodes that were added are members."""
        deadline = time.monotonic() + START_S
        while not all(STARTED in self._log(name).read_text() for name in self._nodes):
            self.revive()
            if time.monotonic() > deadline:
                raise AssertionError("\n".join(path.read_text() for path in self.folder.glob("*.log")))
            time.sleep(0.05)

    def revive(self) -> None:
        """Start nodes again whose start failed: several on one machine may choose the same port."""
        for name, process in list(self._nodes.items()):
            if process.poll() is not None:
                self._start(name, *self._arguments[name])

    def kill(self, name: str) -> None:
        """Kill Ray's processes of the node with SIGKILL; its machine must end on its own."""
        process = self._nodes.pop(name)
        below = _below(process.pid)
        actors = [pid for pid, command in below if ACTOR in command]
        machine = {pid for actor in actors for pid, _ in _below(actor)}
        self._machines += [(pid, born) for pid in machine if (born := _born(pid))]
        for pid in (process.pid, *(pid for pid, _ in below if pid not in (*actors, *machine))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def vanish(self, name: str) -> None:
        """Kill everything on the node, as the loss of its machine does: in a network no connection is told."""
        if self._network is not None:
            self._network.cut(name)
        process = self._nodes.pop(name)
        for pid in (process.pid, *(pid for pid, _ in _below(process.pid))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()

    def left(self) -> list[int]:
        """Living processes of machines on nodes that were killed."""
        return [pid for pid, born in self._machines if _born(pid) == born]

    def drain(self, name: str, seconds: float) -> None:
        """What Ray's autoscaler does on a preemption notice."""
        self.python(DRAIN, self.address, name, str(seconds))

    def nodes(self) -> list[str]:
        """Names of living nodes."""
        return self.python(NODES, self.address).split()

    def python(self, program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def actors(self) -> list[int]:
        """Processes of Ray's workers that serve a machine."""
        below = [each for process in self._nodes.values() for each in _below(process.pid)]
        return [pid for pid, command in below if ACTOR in command]

    def close(self) -> None:
        """Fails if a machine's process is left."""
        for name in list(self._nodes):
            self.kill(name)
        deadline = time.monotonic() + LEFT_S
        while self.left() and time.monotonic() < deadline:
            time.sleep(0.05)
        left = self.left()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not left, f"processes {left} outlived their Ray nodes"

    def _start(self, name: str, *arguments: str) -> None:
        self._arguments[name] = arguments
        program = "from ray.scripts.scripts import main; main()"
        prefix = self._network.command(name) if self._network is not None and name != "head" else ()
        with self._log(name).open("wb") as log:
            self._nodes[name] = subprocess.Popen(
                [*prefix, sys.executable, "-c", program, "start", "--block", "--disable-usage-stats",
                 "--include-log-monitor=false", f"--object-store-memory={STORE}", *arguments],
                env=os.environ | self.environment, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def _head_address(self) -> str:
        deadline = time.monotonic() + START_S
        file = self.folder / "ray" / "ray_current_cluster"
        while time.monotonic() < deadline:
            if file.exists() and (text := file.read_text().strip()):
                return text
            assert self._nodes["head"].poll() is None, self._log("head").read_text()
            time.sleep(0.05)
        raise AssertionError(self._log("head").read_text())


NODES = """
import sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(*(node["NodeName"] for node in ray.nodes() if node["Alive"]))
"""
DRAIN = """
import sys, time
import ray
from ray._raylet import GcsClient
from ray.core.generated import autoscaler_pb2
ray.init(address=sys.argv[1], log_to_driver=False)
found = [node["NodeID"] for node in ray.nodes() if node["Alive"] and node["NodeName"] == sys.argv[2]]
reason = autoscaler_pb2.DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
deadline_ms = int((time.time() + float(sys.argv[3])) * 1000)
accepted, why = GcsClient(address=sys.argv[1]).drain_node(found[0], reason, "spot", deadline_ms)
assert accepted, why
"""


def _below(parent: int) -> list[tuple[int, str]]:
    """Processes below this one, with their commands."""
    found: list[tuple[int, str]] = []
    waiting = [parent]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(child), command))
                waiting.append(int(child))
    return found


def _born(pid: int) -> str:
    """Time of the start of a living process; empty if there is none, or a zombie, which some containers keep."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
