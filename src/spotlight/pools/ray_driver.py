"""The run's process in a Ray cluster: follows membership and drains, and holds one actor per marked node.

    python -m spotlight.pools.ray_driver       # lines of pools/ray_lines.py on stdin and stdout

A process of its own, because Ray ends its driver when the cluster's head is gone, and the run must go on. The actors
belong to it and end with it; the cluster, which it did not start, stays.
"""

import logging
import os
import queue
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

# Not at the top of any module that the controller imports.
import ray
from ray import exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from spotlight.core.errors import SpotlightError, Stopped
from spotlight.pools.local import RESTARTS
from spotlight.pools.ray_actor import MachineActor
from spotlight.pools.ray_drain import draining_nodes
from spotlight.pools.ray_lines import (
    ActorEnd,
    ActorLaunch,
    AnyOrder,
    AnyReport,
    Connected,
    ConnectRay,
    ConnectRefused,
    Ended,
    PlaceMachines,
    RayNode,
    RayProblem,
)
from spotlight.pools.ray_membership import EndKind, RayMembership, Start
from spotlight.pools.tokens import TokenFile

POLL_S = 1.0
FAREWELL_S = 5.0
"""Time for actors to end when the run does."""
AWAITED_S = 60.0
"""An actor that waits longer for its resources is noted."""
CLIENT = "ray://"
AUTO = "auto"
DIAL_S = 5.0
PREEMPTED = 3
"""Ray's reason of death for a node that was drained for its preemption."""


class Orders:
    """Lines of the controller; None at their end."""

    def __init__(self) -> None:
        self._lines: queue.SimpleQueue[AnyOrder | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def next(self, patience_s: float | None = None) -> AnyOrder | None:
        """Raises queue.Empty after `patience_s`."""
        return self._lines.get(timeout=patience_s)

    def _read(self) -> None:
        decoder: msgspec.json.Decoder[AnyOrder] = msgspec.json.Decoder(AnyOrder)
        for line in sys.stdin.buffer:
            self._lines.put(decoder.decode(line))
        self._lines.put(None)


class Reports:
    """Writes lines to the controller. Ray's own output goes to the log, which is standard error."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def send(self, report: AnyReport) -> None:
        self._file.write(msgspec.json.encode(report) + b"\n")


class _Actor:
    def __init__(self, start: Start, launch: ActorLaunch, number: int) -> None:
        options = {
            "name": f"{start.name}-{number}",
            "num_cpus": start.cpus,
            "num_gpus": start.gpus,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": NodeAffinitySchedulingStrategy(start.id, soft=False),
        }
        self.start = start
        self.began = time.monotonic()
        actor: Any = ray.remote(MachineActor)
        self.handle = actor.options(**options).remote()
        self.ready = self.handle.ready.remote()
        self.end = self.handle.serve.remote(msgspec.json.encode(launch))
        self.is_noted = False


class Driver:
    """Actors of the run, by the ids of their nodes."""

    def __init__(self, connect: ConnectRay, reports: Reports) -> None:
        self._connect = connect
        self._reports = reports
        self._membership = RayMembership(connect)
        self._actors: dict[str, _Actor] = {}
        self._count = 0
        self._unusable: list[str] = []

    def poll(self, place: PlaceMachines) -> None:
        nodes = ray_nodes(self._connect)
        draining = self._draining()
        self._take_ends(nodes)
        for report in self._membership.draining(draining, time.time()):
            self._reports.send(report)
        for start in self._membership.look(nodes, draining, time.monotonic()):
            self._start(start, place)
        self._note_waiting()

    def stop(self) -> None:
        """Wait for machines that leave, and end the others."""
        if self._actors:
            ray.wait([each.end for each in self._actors.values()], num_returns=len(self._actors), timeout=FAREWELL_S)
        for actor in self._actors.values():
            ray.kill(actor.handle)
        ray.shutdown()

    def _draining(self) -> dict[str, int]:
        if not self._connect.address.startswith(CLIENT):
            return draining_nodes()
        listing: Any = ray.remote(draining_nodes).options(num_cpus=0).remote()
        return dict(ray.get(listing))

    def _start(self, start: Start, place: PlaceMachines) -> None:
        launch = ActorLaunch(
            token_file=msgspec.json.encode(TokenFile.read(Path(place.token_path))),
            name=start.name,
            slot_class=start.slot_class,
            slots=start.slots,
            zone=start.zone,
            folder=place.folder,
        )
        self._count += 1
        self._actors[start.id] = _Actor(start, launch, self._count)

    def _take_ends(self, nodes: Sequence[RayNode]) -> None:
        if not self._actors:
            return
        table = {node.id: node for node in nodes}
        waiting = {each.end: key for key, each in self._actors.items()}
        done, _ = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)
        for ref in done:
            key = waiting[ref]
            kind, detail = end_of(ref, table.get(key), self._membership.was_drained(key))
            name = self._membership.name_of(key)
            ray.kill(self._actors.pop(key).handle)
            self._reports.send(Ended(name=name, cause=f"{kind.value}: {detail}" if detail else kind.value))
            failures = self._membership.ended(key, kind, time.monotonic())
            if kind is EndKind.FAILED and failures in (1, RESTARTS):
                row = f", {failures} times in a row" if failures > 1 else ""
                problem = f"the machine {name} failed{row}, and is tried again: {detail}"
                self._reports.send(RayProblem(problem=problem))

    def _note_waiting(self) -> None:
        for actor in self._actors.values():
            if actor.is_noted or time.monotonic() - actor.began < AWAITED_S:
                continue
            actor.is_noted = True
            if not ray.wait([actor.ready], timeout=0)[0]:
                held = f"{actor.start.gpus} GPUs" if actor.start.gpus else f"{actor.start.cpus:g} CPUs"
                problem = (
                    f"the Ray node {actor.start.name} waits for its {held}, which other work of the cluster holds; end "
                    "that work, or remove the node's mark."
                )
                self._reports.send(RayProblem(problem=problem))
        unusable = self._membership.unusable()
        if unusable != self._unusable:
            self._unusable = unusable
            names = ", ".join(unusable)
            problem = f"the Ray nodes {names} are marked but have no GPU, which the run computes on; they are not used."
            self._reports.send(RayProblem(problem=problem))


def dial(address: str) -> None:
    """Raise OSError if nothing listens at an address that names a port: Ray would try for minutes."""
    address = os.environ.get("RAY_ADDRESS", address) if address == AUTO else address
    host, _, port = address.removeprefix(CLIENT).rpartition(":")
    if port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), DIAL_S).close()


def ray_nodes(connect: ConnectRay) -> list[RayNode]:
    """Ray's table without the node of this machine, whose devices belong to the run's own nodes."""
    own = "" if connect.address.startswith(CLIENT) else ray.get_runtime_context().get_node_id()
    return [
        RayNode(
            id=each["NodeID"],
            name=each.get("NodeName") or each["NodeManagerAddress"],
            is_alive=each["Alive"],
            labels=each.get("Labels", {}),
            resources=each.get("Resources", {}),
            death="preempted" if each.get("DeathReason") == PREEMPTED else each.get("DeathReasonMessage") or "",
        )
        for each in ray.nodes()
        if each["NodeID"] != own
    ]


def end_of(ref: Any, node: RayNode | None, was_drained: bool) -> tuple[EndKind, str]:
    """Why an actor ended, and in which words."""
    try:
        end = msgspec.json.decode(ray.get(ref), type=ActorEnd)
        kinds = {0: EndKind.LEFT, Stopped.exit_code: EndKind.STOPPED}
        return kinds.get(end.exit_code, EndKind.FAILED), end.problem
    except exceptions.OutOfMemoryError as error:
        return EndKind.OUT_OF_MEMORY, _last_line(error)
    except exceptions.RayActorError as error:
        if error.actor_init_failed:
            return EndKind.FAILED, _last_line(error)
        is_alive = node is not None and node.is_alive
        if error.preempted or (was_drained and not is_alive):
            return EndKind.PREEMPTED, "Ray drained its node, which is gone"
        if not is_alive:
            return EndKind.NODE_LOST, f"Ray reports {node.death if node is not None and node.death else 'no reason'}"
        return EndKind.CRASHED, _last_line(error)
    except exceptions.RayError as error:
        is_alive = node is not None and node.is_alive
        return EndKind.FAILED if is_alive else EndKind.NODE_LOST, _last_line(error)


def sentence_of(error: Exception) -> str:
    """What Ray says on one line; it spreads some sentences, as on versions that differ, over several."""
    text = str(error)
    return _last_line(error) if "Traceback" in text else " ".join(text.split())[:400] or type(error).__name__


def _last_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:400] if lines else type(error).__name__


def main() -> None:
    reports, orders = Reports(), Orders()
    connect = orders.next()
    if not isinstance(connect, ConnectRay):
        return
    try:
        dial(connect.address)
        ray.init(
            address=connect.address, namespace=connect.namespace, log_to_driver=False, logging_level=logging.WARNING
        )
        nodes = [node for node in ray_nodes(connect) if node.is_alive]
        host = ray.util.get_node_ip_address()
    except Exception as error:
        reports.send(ConnectRefused(problem=sentence_of(error)))
        return
    reports.send(Connected(version=ray.__version__, host=host, nodes=tuple(nodes)))
    driver = Driver(connect, reports)
    place: PlaceMachines | None = None
    try:
        while True:
            try:
                order = orders.next(POLL_S)
            except queue.Empty:
                pass
            else:
                if not isinstance(order, PlaceMachines):
                    break
                place = order
            if place is not None:
                driver.poll(place)
    except (SpotlightError, exceptions.RayError) as error:
        reports.send(RayProblem(problem=f"the run's process in the Ray cluster failed: {_last_line(error)}"))
    finally:
        driver.stop()


if __name__ == "__main__":
    main()
