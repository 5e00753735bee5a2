"""A small Ray cluster on this machine, in folders of its own: several nodes that come, drain and die.

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

STORE = 80 << 20
START_S = 120.0
CONFIG = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 300,
    "health_check_timeout_ms": 3000,
    "health_check_failure_threshold": 3,
}
"""Ray's own defaults take 15 s to find a dead node."""


class TestCluster:
    """Nodes are processes of `ray start --block`, each with its own group."""

    __test__ = False

    def __init__(self, has_token: bool = False) -> None:
        # Short, because Ray's sockets are below it.
        self.folder = Path(tempfile.mkdtemp(prefix="sr", dir="/tmp"))
        (self.folder / "ray").mkdir()
        (self.folder / "home").mkdir()
        self.environment = {
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_AUTH_MODE": "disabled",
            "RAY_DISABLE_IMPORT_WARNING": "1",
            "TMPDIR": str(self.folder),
        }
        if has_token:
            token = self.folder / "token"
            token.write_text(secrets.token_hex(32))
            token.chmod(0o600)
            self.environment |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.address = ""
        self._start("head", "--head", "--port=0", "--num-cpus=0", "--include-dashboard=false",
                    f"--system-config={json.dumps(CONFIG)}", f"--temp-dir={self.folder}/ray")  # fmt: skip
        self.address = self._head_address()

    def add(self, name: str, *arguments: str, labels: str = "spotlight=spot") -> None:
        """Start a node; does not wait for it."""
        marks = [f"--labels={labels}"] if labels else []
        self._start(name, f"--address={self.address}", f"--node-name={name}", "--num-cpus=1", *marks, *arguments)

    def kill(self, name: str) -> None:
        """Kill the raylet with SIGKILL; Ray's workers and all below them must end on their own."""
        for pid, command in _below(self._nodes[name].pid):
            if "/raylet/raylet" in command:
                os.kill(pid, signal.SIGKILL)
        self._end(name)

    def drain(self, name: str, seconds: float) -> None:
        """What Ray's autoscaler does on a preemption notice."""
        self.python(DRAIN, self.address, name, str(seconds))

    def nodes(self) -> dict[str, bool]:
        """Names of living nodes."""
        return json.loads(self.python(NODES, self.address).splitlines()[-1])

    def python(self, program: str, *arguments: str) -> str:
        command = [sys.executable, "-c", program, *arguments]
        done = subprocess.run(command, env=os.environ | self.environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def is_alive(self) -> bool:
        return all(process.poll() is None for process in self._nodes.values())

    def actors(self) -> list[int]:
        """Processes of Ray's workers that serve a machine."""
        below = [each for process in self._nodes.values() for each in _below(process.pid)]
        return [pid for pid, command in below if "MachineActor" in command]

    def close(self) -> None:
        for name in list(self._nodes):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self, name: str, *arguments: str) -> None:
        program = "from ray.scripts.scripts import main; main()"
        with (self.folder / f"{name}.log").open("ab") as log:
            self._nodes[name] = subprocess.Popen(
                [sys.executable, "-c", program, "start", "--block", "--disable-usage-stats",
                 f"--object-store-memory={STORE}", *arguments],
                env=os.environ | self.environment, stdout=log, stderr=log, cwd=self.folder,
            )  # fmt: skip

    def _head_address(self) -> str:
        deadline = time.monotonic() + START_S
        file = self.folder / "ray" / "ray_current_cluster"
        while time.monotonic() < deadline:
            if file.exists() and (text := file.read_text().strip()):
                return text
            assert self._nodes["head"].poll() is None, (self.folder / "head.log").read_text()
            time.sleep(0.05)
        raise AssertionError((self.folder / "head.log").read_text())

    def _end(self, name: str) -> None:
        process = self._nodes.pop(name)
        found = [process.pid, *(pid for pid, _ in _below(process.pid))]
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


NODES = """
import json, sys
import ray
ray.init(address=sys.argv[1], log_to_driver=False)
print(json.dumps({node["NodeName"]: True for node in ray.nodes() if node["Alive"]}))
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
    found, waiting = [], [parent]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
                command = Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found.append((int(child), command))
                waiting.append(int(child))
    return found
