"""Processes that share one device, each with the same blocks, and the figures of their forwards."""

import asyncio
import multiprocessing
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.lib.figures import Figure
from spotlight.core.crew_messages import GroupToken
from spotlight.core.types import NodeId, WorkerId
from spotlight.node.group_store import GroupStore

DEGREES = (1, 2, 4)
FORWARDS = 6
TEXT = 64


def member(pipe: Connection, device: str, layers: int, tokens: int) -> None:
    """Builds the blocks once, then forms and leaves a group for every order."""
    from diffusers import QwenImageTransformer2DModel

    from spotlight.compute.parallel.group import form
    from spotlight.compute.parallel.sharding import Sharding

    torch.set_num_threads(1)
    torch.manual_seed(0)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    with torch.device(device):
        model = QwenImageTransformer2DModel(num_layers=layers).to(dtype).eval().requires_grad_(False)
        edge = int(tokens**0.5)
        generator = torch.Generator(device).manual_seed(1)
        inputs = {
            "hidden_states": torch.randn(1, edge * edge, 64, generator=generator, dtype=dtype),
            "encoder_hidden_states": torch.randn(1, TEXT, 3584, generator=generator, dtype=dtype),
            "encoder_hidden_states_mask": torch.ones(1, TEXT, dtype=torch.bool),
            "timestep": torch.tensor([0.5], dtype=dtype),
            "img_shapes": [[(1, edge, edge)]],
            "return_dict": False,
        }
    sharding = Sharding(model)
    pipe.send(None)
    while (order := pipe.recv()) is not None:
        token, members, rank, store = order
        began = time.perf_counter()
        group = form(token, members, rank, store, limit_s=120.0)
        formed = time.perf_counter() - began
        sharding.bind(group)
        seconds, output = timed(model, inputs, device)
        sharding.bind(None)
        if group is not None:
            group.drop()
        pipe.send((formed, seconds, output.float().cpu().numpy() if rank == 0 else None))


@torch.no_grad()
def timed(model: torch.nn.Module, inputs: dict, device: str) -> tuple[list[float], Tensor]:
    seconds = []
    for _ in range(FORWARDS):
        began = time.perf_counter()
        output = model(**inputs)[0]
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return seconds[1:], output


class StoreThread:
    """The agent's group store, on its own event loop."""

    def __init__(self, path: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self.store = GroupStore(path)
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        asyncio.run_coroutine_threadsafe(self.store.start(), self._loop).result(10)

    def open(self, token: GroupToken) -> None:
        async def act() -> None:
            self.store.open(token)

        asyncio.run_coroutine_threadsafe(act(), self._loop).result(10)


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def figures(device: str, layers: int, token_counts: Sequence[int]) -> dict[str, Figure]:
    found: dict[str, Figure] = {}
    with tempfile.TemporaryDirectory() as folder:
        store = StoreThread(Path(folder) / "store.sock")
        for number, tokens in enumerate(token_counts):
            found |= measure(device, layers, tokens, store, 1 + 10 * number)
    return found


def measure(device: str, layers: int, tokens: int, store: StoreThread, epoch: int) -> dict[str, Figure]:
    context = multiprocessing.get_context("spawn")
    pipes = []
    for _ in range(max(DEGREES)):
        here, there = context.Pipe()
        context.Process(target=member, args=(there, device, layers, tokens), daemon=True).start()
        pipes.append(here)
    for pipe in pipes:
        pipe.recv()
    figures: dict[str, Figure] = {}
    medians: dict[int, float] = {}
    reference = None
    for number, degree in enumerate(DEGREES):
        token = GroupToken(NodeId("bench.1"), epoch + number)
        members = tuple(WorkerId(f"bench.1/{rank}.1") for rank in range(degree))
        store.open(token)
        for rank, pipe in enumerate(pipes[:degree]):
            pipe.send((token, members, rank, str(store.store.path)))
        replies = [pipe.recv() for pipe in pipes[:degree]]
        seconds, output = replies[0][1], torch.from_numpy(replies[0][2])
        reference = output if reference is None else reference
        medians[degree] = statistics.median(seconds)
        name = f"tokens_{tokens}_degree_{degree}"
        figures[f"{name}_s"] = Figure.median(seconds, "s per forward, median")
        error = float((output - reference).norm() / reference.norm())
        figures[f"{name}_relative_error"] = Figure.single(error, "of degree 1, norm")
        figures[f"{name}_cost"] = Figure.single(medians[degree] / medians[1], "times degree 1 on the same device")
        print({name: (medians[degree], error, [reply[0] for reply in replies])}, file=sys.stderr)
    for pipe in pipes:
        pipe.send(None)
    return figures
