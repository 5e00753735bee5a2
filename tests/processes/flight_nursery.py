"""A process that forks a worker for every order; started by test_flight_processes.py.

An order: roll out the sample of a scenario by a model, from a flight or from its beginning, among other neighbours. A
worker with `stop` sends its commits over a pipe until that step boundary and waits to be killed; the commits are kept
as the controller keeps them. A worker without `stop` runs to the end. Each order has one reply.
"""

import hashlib
import os
import signal
import struct
from base64 import b64decode, b64encode
from contextlib import suppress
from functools import cache, partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch
from blob_stories import StoredFlights
from tiny_models import tiny_adapter

from spotlight.compute.models import families
from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.rollout.engine import Engine, Finished
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import NodeStore
from spotlight.core.types import NO_WINDOW, Prompt, Sample, SamplerKind, Sampling, Version, Window
from spotlight.core.work import Request, RequestId, WeightsId, Work

RUN_SEED, ROWS, STEPS = 11, 4, 10
WEIGHTS = WeightsId(Version(1))
MODELS = {"tiny": tiny_adapter, "words": partial(families.load, "words")}
PROMPTS = [Prompt(text=f'the word "{word}"') for word in ("badge", "fed", "cab")]
WINDOWS = {"ode": NO_WINDOW, "sde": Window(3, 3)}


class Order(msgspec.Struct):
    model: str
    scenario: str
    stop: int | None = None
    flight: str | None = None
    neighbours: int = 0


class Reply(msgspec.Struct):
    pid: int
    signal: int
    step: int = 0
    flight: str | None = None
    digest: str = ""
    steps: int = 0


def sampling(adapter: PixelAdapter, scenario: str) -> Sampling:
    window = WINDOWS[scenario]
    kind = SamplerKind.FLOW_SDE if window.size else SamplerKind.ODE
    level = 0.7 if window.size else 0.0
    return Sampling(steps=STEPS, size=adapter.native_size, sampler=kind, noise_level=level, window=window)


def request(adapter: PixelAdapter, scenario: str, seed: int) -> Request:
    sample = Sample(
        prompt=PROMPTS[seed % 3].id, seed=seed, sampling=sampling(adapter, scenario), version=WEIGHTS.version
    )
    return Request(work=Work.ROLLOUT, iteration=0, group=seed % 3, sample=sample)


def work(adapter: PixelAdapter, store: NodeStore, order: Order, up: int) -> None:
    """Run as the worker; never returns."""
    resident = Resident(adapter.transformer, "base")
    resident.load(store.open(WEIGHTS))
    engine = Engine(adapter, resident, RUN_SEED, ROWS, padded=True)
    for seed in range(order.neighbours):
        engine.admit(request(adapter, "sde", 100 + seed), PROMPTS[(100 + seed) % 3], 1)
        engine.step()
    target = request(adapter, order.scenario, seed=0)
    engine.admit(target, PROMPTS[0], 1, 1, b64decode(order.flight) if order.flight else None)
    while True:
        boundary = engine.step()
        for commit in boundary.commits:
            if order.stop is not None:
                send(up, msgspec.msgpack.encode((commit.step, commit.since, commit.flight)))
            if commit.step == order.stop:
                signal.pause()
        for finished in boundary.finished:
            if finished.request.id == target.id:
                send(up, f"{digest(finished)} {finished.steps}".encode())
                os._exit(0)


def digest(finished: Finished) -> str:
    """Digest of every bit that training would use."""
    payload = finished.payload
    hasher = hashlib.blake2b(digest_size=16)
    for tensor in (payload.x0_SC, payload.path_KSC, payload.log_prob_K, payload.mean_KSC):
        hasher.update(tensor.numpy().tobytes())
    return hasher.hexdigest()


def send(up: int, data: bytes) -> None:
    with os.fdopen(os.dup(up), "wb") as pipe:
        pipe.write(struct.pack("<Q", len(data)) + data)


def receive(pipe: BinaryIO) -> bytes:
    (size,) = struct.unpack("<Q", pipe.read(8))
    return pipe.read(size)


def committed(pipe: BinaryIO, flights: StoredFlights, target: RequestId, stop: int) -> bytes:
    """The whole flight at this step, assembled from its commits."""
    step = 0
    while step < stop:
        step, since, part = msgspec.msgpack.decode(receive(pipe), type=tuple[int, int, bytes])
        assert flights.fits(target, since)
        flights.keep(target, step, part, since)
    return flights.at(target, stop) or b""


def carry_out(adapter: PixelAdapter, store: NodeStore, order: Order, flights: StoredFlights) -> Reply:
    down, up = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            work(adapter, store, order, up)
        finally:
            os._exit(1)
    os.close(up)
    target = request(adapter, order.scenario, seed=0).id
    if order.flight is None:
        flights.forget(target)
    with os.fdopen(down, "rb") as pipe:
        data = receive(pipe) if order.stop is None else committed(pipe, flights, target, order.stop)
    if order.stop is not None:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    reply = Reply(pid=child, signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0)
    if order.stop is not None:
        reply.step, reply.flight = order.stop, b64encode(data).decode()
    else:
        reply.digest, steps = data.decode().split()
        reply.steps = int(steps)
    return reply


def serve(link: Connection, folder: Path) -> None:
    # Before any kernel runs, so that no thread pool exists when a worker is forked.
    torch.set_num_threads(1)

    @cache
    def node(model: str) -> tuple[PixelAdapter, NodeStore]:
        adapter, store = MODELS[model](), NodeStore(folder / model)
        state = {name: p.detach() * 1.01 for name, p in adapter.transformer.named_parameters()}
        store.publish(WEIGHTS, adapter.family, state, "base")
        return adapter, store

    flights = StoredFlights()
    with suppress(EOFError):
        while True:
            order: Order = link.recv()
            link.send(carry_out(*node(order.model), order, flights))
    # Tearing down an interpreter that holds torch takes seconds.
    os._exit(0)
