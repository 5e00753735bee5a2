"""Servers and nodes in processes of their own; the parent hands addresses on and measures the slowest copy."""

import asyncio
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.lib.figures import Figure
from spotlight.node.blob_client import PART

PATH = "weights/behaviour-1.safetensors"


def measure(nodes: int, megabytes: int, rate: float, repeats: int) -> dict[str, Figure]:
    """Figures over the repeats."""
    found = [asyncio.run(_chain(nodes, megabytes, rate)) for _ in range(repeats)]
    bound_s = megabytes / rate + (nodes - 1) * PART / 1e6 / rate
    return {
        "chain_s": Figure.median(found, "seconds until the last node has the file"),
        "chain_vs_bound": Figure.median([each / bound_s for each in found], "times the arithmetic bound of a chain"),
        "bound_s": Figure.single(bound_s, "seconds: the file once, and a part per further node"),
        "speedup_vs_star": Figure.median(
            [nodes * megabytes / rate / each for each in found], "times sooner than if the run sent every copy"
        ),
    }


async def _chain(nodes: int, megabytes: int, rate: float) -> float:
    with TemporaryDirectory(prefix="bandwidth-") as name:
        folder = Path(name)
        (folder / "run" / "weights").mkdir(parents=True)
        digest = _write(folder / "run" / PATH, megabytes)
        home = await _Process.start("home", folder, rate)
        chain = [await _Process.start(f"spot-{number}.1", folder, rate) for number in range(nodes)]
        try:
            began = time.monotonic()
            sources: list[list[str]] = []
            for node in chain:
                node.order({"home": home.address, "sources": sources})
                sources = [node.address]
            seen = await asyncio.gather(*(node.line() for node in chain))
            seconds = time.monotonic() - began
        finally:
            for process in (home, *chain):
                await process.stop()
        if any(each != digest for each in seen):
            raise SystemExit("a node has other bytes than the run")
        print(f"{nodes} nodes: {seconds:.1f} s", file=sys.stderr, flush=True)
        return seconds


def _write(path: Path, megabytes: int) -> str:
    digest = hashlib.blake2b()
    with path.open("wb") as file:
        for _ in range(megabytes):
            data = os.urandom(1_000_000)
            digest.update(data)
            file.write(data)
    return digest.hexdigest()


class _Process:
    """`bandwidth.node` in a process: prints its address, takes an order, prints the digest of its copy."""

    def __init__(self, process: asyncio.subprocess.Process, address: list[str]) -> None:
        self._process = process
        self.address = address

    @classmethod
    async def start(cls, name: str, folder: Path, rate: float) -> "_Process":
        command = [sys.executable, "-m", "benchmarks.bandwidth.node", name, str(folder), str(rate)]
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdout is not None
        return cls(process, json.loads(await process.stdout.readline()))

    def order(self, order: dict[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def line(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
