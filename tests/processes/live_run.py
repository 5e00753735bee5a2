"""A real run in its own process group, driven from a test: start, watch the journal, kill by pid, resume."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import fork_server
from command_line import spotlight
from relayed_run import PORT_FILE

from spotlight.compute.rollout.stored_flights import is_part_intact, stored_parts
from spotlight.control.ledger import Ledger
from spotlight.control.ledger.audit import audit
from spotlight.control.recovery import Records, recover
from spotlight.core.events import (
    Accepted,
    AnyEvent,
    Dropped,
    Leased,
    Published,
    Record,
    Released,
    RunResumed,
    RunStarted,
    StepCommitted,
    WorkerJoined,
    WorkerLost,
)
from spotlight.core.journal import read
from spotlight.core.segments import list_segments
from spotlight.core.work import RequestId, Work

PATIENCE_S = 240.0

RECIPE = """
extends: words-nft
deterministic: true
iterations: {iterations}
rollout: {{prompts: 2, group_size: 4, steps: 6}}
train: {{micro_batch: 4}}
explore: {{plan: fixed, seeds: 6, steps: 2, audit_share: 0.5}}
eval: {{every: 2, prompts: 4, steps: 4}}
cluster: {{reserved: 1, spot: 2, rows: 4, commit_every: 1, heartbeat_s: 0.2}}
reward: {{processes: 1}}
output: {{name: run, checkpoint_every: 2, journal: {{sync: never}}}}
"""


class LiveRun:
    """One run folder and its current controller."""

    def __init__(
        self, folder: Path, recipe: str | None = None, iterations: int = 3, name: str = "run", is_lent: bool = False
    ) -> None:
        """`is_lent`: its workers are forked from a nursery that other runs of this test process use too, for runs that
        a test only compares with."""
        self._program: tuple[str, ...] = ("-m", "spotlight.surface.cli.main")
        if is_lent:
            self._program = (str(Path(__file__).with_name("lent_run.py")), str(fork_server.nursery()))
        self.folder = folder
        self.run = folder / "runs" / name
        (folder / "recipe.yaml").write_text(recipe or RECIPE.format(iterations=iterations))
        self._controller: subprocess.Popen[bytes] | None = None
        self._sizes: dict[Path, int] = {}
        self._records: list[Record] = []

    def start(self, *arguments: str) -> None:
        self._spawn("train", "recipe.yaml", "--output.name", self.run.name, *arguments)

    def resume(self, *arguments: str) -> None:
        self._spawn("resume", self.run.name, *arguments)

    def finish(self, patience_s: float = PATIENCE_S) -> int:
        """Wait for the controller's end; returns its exit code."""
        assert self._controller is not None
        code = self._controller.wait(patience_s)
        self._controller = None
        return code

    def kill_controller(self) -> None:
        """Kill the controller with SIGKILL, like the loss of its machine; agents and workers must end on their own."""
        assert self._controller is not None
        self._controller.kill()
        self.finish()

    def interrupt(self) -> None:
        assert self._controller is not None
        self._controller.send_signal(signal.SIGINT)

    def kill_worker(self, of: Callable[[WorkerJoined], bool]) -> WorkerJoined:
        """Wait for a live worker of this kind and kill the newest one with SIGKILL."""
        worker = self.wait_for(lambda: next((w for w in reversed(self.living()) if of(w)), None))
        os.kill(worker.pid, signal.SIGKILL)
        return worker

    def agents(self) -> set[int]:
        """Children of the controller that run an agent."""
        assert self._controller is not None
        children = Path(f"/proc/{self._controller.pid}/task/{self._controller.pid}/children").read_text().split()
        return {int(pid) for pid in children if b"spotlight.node.agent" in Path(f"/proc/{pid}/cmdline").read_bytes()}

    def living(self) -> list[WorkerJoined]:
        lost = {event.worker for event in self.events(WorkerLost)}
        return [event for event in self.events(WorkerJoined) if event.worker not in lost and _is_alive(event.pid)]

    def records(self) -> list[Record]:
        """Records of the journal so far, read anew only where it has grown: tests poll them."""
        # The folder is made a moment before its first segment.
        journal = self.run / "journal"
        sizes = {path: path.stat().st_size for path in list_segments(journal)} if journal.is_dir() else {}
        if sizes != self._sizes:
            self._sizes, self._records = sizes, list(read(journal))
        return self._records

    def events(self, kind: type) -> list:
        return [record.event for record in self.records() if isinstance(record.event, kind)]

    def wait_for(self, seen: Callable[[], object], patience_s: float = PATIENCE_S) -> object:
        """Poll until `seen` returns a true value and return it; fail if the controller ends before."""
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            found = seen()
            if found:
                return found
            if self._controller is not None and self._controller.poll() is not None:
                raise AssertionError(f"the run ended early:\n{self.log()}")
            time.sleep(0.02)
        raise AssertionError(f"nothing was seen within {patience_s:.0f} s:\n{self.log()}")

    def wait_for_event(self, kind: type, fits: Callable[[AnyEvent], bool] = lambda event: True) -> AnyEvent:
        return self.wait_for(lambda: next((event for event in self.events(kind) if fits(event)), None))

    def committed_flights(self, iteration: int) -> dict[RequestId, int]:
        """Steps of the committed flights of an iteration's unfinished rollouts, by what lies on the disk."""
        ledger = Ledger.replay(record.event for record in self.records())
        known = Records(
            {(event.request, event.attempt): event.worker for event in self.events(Leased)},
            {event.weights: event.digest for event in self.events(Published)},
        )
        found = recover(stored_parts(self.run), ledger, known, partial(is_part_intact, self.run))
        rollouts = {request.id for request in ledger.iteration(iteration, Work.ROLLOUT)}
        return {request: flight[-1].step for request, flight in found.items() if request in rollouts}

    def first_leases(self) -> dict[RequestId, int]:
        """Step at which each sample was leased first after the newest start of the controller."""
        events = [record.event for record in self.records()]
        newest = max(number for number, event in enumerate(events) if isinstance(event, RunStarted | RunResumed))
        return {event.request: event.step for event in reversed(events[newest:]) if isinstance(event, Leased)}

    def log(self) -> str:
        return (self.folder / "controller.log").read_text()

    def held(self, node: str) -> set[str]:
        """Samples that a node works on."""
        holders: dict[str, str] = {}
        for record in self.records():
            match record.event:
                case Leased(request=request, worker=worker):
                    holders[request] = worker.partition("/")[0]
                case Accepted(request=request) | Released(request=request) | Dropped(request=request):
                    holders.pop(request, None)
        return {request for request, holder in holders.items() if holder == node}

    def digests(self) -> list[str]:
        """Digests of the trained weights after each committed step."""
        return [event.digest for event in self.events(StepCommitted)]

    def theta(self) -> str:
        """Digest of the trained weights after the last committed step."""
        return self.digests()[-1]

    def status(self) -> dict[str, Any]:
        """Output of `spotlight status --json`."""
        shown = spotlight("status", self.run, "--json")
        assert shown.code == 0, shown.err
        return json.loads(shown.out)

    def config(self) -> dict[str, Any]:
        """The stored settings."""
        return json.loads((self.run / "config.json").read_text())

    def check(self) -> None:
        report = audit(self.records())
        assert report.clean, "\n".join(report.sentences())

    def close(self) -> None:
        if self._controller is not None:
            self._controller.kill()
            self._controller.wait()

    def start_doomed(self, fates: Path) -> None:
        """Start it with training workers that kill themselves by the fates in that folder."""
        here = Path(__file__).parent
        program = (str(here / "doomed_ranks.py"), str(fates))
        self._spawn("train", "recipe.yaml", "--output.name", self.run.name, program=program)

    def start_bare(self) -> None:
        """Start it with workers that import after their fork."""
        program = (str(Path(__file__).with_name("bare_run.py")),)
        self._spawn("train", "recipe.yaml", "--output.name", self.run.name, program=program)

    def start_relayed(self, relays: dict[str, int], *arguments: str) -> None:
        """Start it with agents that reach the controller at these ports."""
        program = (str(Path(__file__).with_name("relayed_run.py")), json.dumps(relays))
        self._spawn("train", "recipe.yaml", "--output.name", self.run.name, *arguments, program=program)

    def door(self) -> tuple[str, int]:
        """Where the controller of a relayed run listens."""
        return "127.0.0.1", int((self.folder / PORT_FILE).read_text())

    def _spawn(self, *arguments: str, program: Sequence[str] = ()) -> None:
        path = os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH"))))
        with (self.folder / "controller.log").open("ab") as log:
            self._controller = subprocess.Popen(
                [sys.executable, *(program or self._program), *arguments],
                cwd=self.folder,
                stdout=log,
                stderr=log,
                env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path},
            )


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
