"""A worker without a model: follows the protocol and paints each sample in the grey of its seed.

It reports weights as published without writing them, holds any weights it adopts, and reports the name of its device as
its kind.

Seeds with a meaning: HANG stops the heartbeat, BROKEN sends bytes that are no frame, UNJUDGED makes the judge fail.
"""

import gc
import hashlib
import os
import socket
import sys
import threading
from pathlib import Path

import numpy as np
from safetensors.numpy import save

from spotlight import __version__
from spotlight.compute.rewards.protocol import Scores
from spotlight.compute.rollout.seal import LENGTH_BYTES, OPENING, UNSEALED, with_seal
from spotlight.core import messages as m
from spotlight.core import wire
from spotlight.core.crew_messages import Adopt
from spotlight.core.events import SCHEMA
from spotlight.core.work import Work
from spotlight.node.launch import WorkerLaunch

HANG, BROKEN, UNJUDGED = 251, 252, 253


class Brightness:
    """Mean grey, plus one per letter of the prompt; raises for the grey of UNJUDGED."""

    name, version = "brightness", "7"

    def score(self, images, prompts):
        if any(image[0, 0, 0] == UNJUDGED for image in images):
            raise ValueError("too bright to look at")
        total = np.array([image.mean() + len(prompt.text) for image, prompt in zip(images, prompts, strict=True)])
        return Scores(total=total, components={"letters": np.array([float(len(prompt.text)) for prompt in prompts])})


def payload_of(request: str) -> bytes:
    """Sealed bytes that stand for a rollout's tensors."""
    return with_seal(bytes(LENGTH_BYTES) + OPENING + UNSEALED + f"latents of {request}".encode())


def result_of(granted: m.Granted) -> tuple[m.Result, bytes]:
    tensors = {"image": np.full((4, 6, 3), granted.request.sample.seed, dtype=np.uint8)}
    if granted.request.work is Work.ROLLOUT:
        tensors["payload"] = np.frombuffer(payload_of(granted.request.id), dtype=np.uint8)
    result = m.Result(request=granted.request.id, attempt=granted.attempt, digest="d", steps=10)
    return result, save(tensors)


def warm(device: str) -> None:
    """Opens no device; its output shows that it was called."""
    sys.stdout.write(f"opened {device}\n")
    sys.stdout.flush()


def entry(worker, sock: socket.socket, launch_bytes: bytes) -> None:
    assert gc.isenabled(), "a worker without the collector keeps every cycle"
    launch = WorkerLaunch.from_bytes(launch_bytes)
    connection = wire.Connection(sock)
    is_silent = threading.Event()

    def send(message: m.AnyMessage, blob: bytes = b"") -> None:
        connection.send(m.Envelope(worker, message), blob)

    def beat() -> None:
        while not is_silent.wait(launch.heartbeat_s):
            send(m.Alive())

    send(
        m.Hello(
            schema=SCHEMA,
            code=__version__,
            node=launch.node,
            slot_class=launch.slot_class,
            rows=launch.rows,
            pid=os.getpid(),
            kind=launch.device.name,
        )
    )
    threading.Thread(target=beat, daemon=True).start()
    send(m.Pull(free_rows=launch.rows))
    while (frame := connection.recv()) is not None:
        match frame[0].message:
            case m.Grant(leases=leases):
                for granted in leases:
                    if granted.request.sample.seed == HANG:
                        is_silent.set()
                        threading.Event().wait()
                    if granted.request.sample.seed == BROKEN:
                        sock.sendall(b"this is no frame of ours at all")
                        threading.Event().wait()
                    send(*result_of(granted))
            case m.Load(weights=weights, path=path):
                assert Path(path).parent == Path(launch.store)
                send(m.Held(weights=weights, digest=hashlib.sha256(Path(path).read_bytes()).hexdigest()))
            case m.Publish(weights=(weights,)):
                send(m.PublishedWeights(weights=weights, digest=f"{weights} of {worker}", size=1, step=1))
            case Adopt(weights=weights, digest=digest):
                send(m.Held(weights=weights, digest=digest))
            case m.Drain():
                send(m.HandBack(request="rollout/0/0/0", attempt=1, step=3), b"flight")
                return
