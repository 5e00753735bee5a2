"""A link between two network namespaces that delays and loses packets, as netem does where the kernel has it.

    python -m benchmarks.latency.link NAMESPACE ADDRESS NAMESPACE ADDRESS MS LOSS MBIT SEED

Each namespace gets a TUN device with its address; this process copies packets between the two, in both directions,
until its standard input ends. It prints a line once the link is up.
"""

import asyncio
import ctypes
import fcntl
import os
import random
import struct
import sys
from pathlib import Path

from benchmarks.lib.namespaces import ip

DEVICE = "wan"
TUNSETIFF = 0x400454CA
TUN, NO_HEADER = 0x0001, 0x1000
NEW_NET = 0x40000000
MTU = 1500
QUEUE_S = 0.2
"""Packets that would wait longer than this for the bandwidth are lost."""


class Direction:
    """Packets of one direction."""

    def __init__(self, source: int, target: int, delay_s: float, loss: float, bytes_per_s: float, seed: int) -> None:
        self._source = source
        self._target = target
        self._delay_s = delay_s
        self._loss = loss
        self._bytes_per_s = bytes_per_s
        self._drawn = random.Random(seed)
        self._free_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(source, self._read)

    def _read(self) -> None:
        try:
            packet = os.read(self._source, 1 << 16)
        except BlockingIOError:
            return
        now = self._loop.time()
        self._free_at = max(self._free_at, now)
        if self._drawn.random() < self._loss or self._free_at - now > QUEUE_S:
            return
        self._free_at += len(packet) / self._bytes_per_s
        self._loop.call_at(self._free_at + self._delay_s, self._write, packet)

    def _write(self, packet: bytes) -> None:
        try:
            os.write(self._target, packet)
        except OSError:
            # A full queue, or a device that is going down.
            return


def enter(namespace: Path) -> None:
    """This process is in that namespace from now on; devices that it has opened stay where they are."""
    libc = ctypes.CDLL(None, use_errno=True)
    with namespace.open() as file:
        if libc.setns(file.fileno(), NEW_NET):
            raise OSError(ctypes.get_errno(), f"{namespace} cannot be entered")


def device_in(namespace: str, address: str) -> int:
    """A TUN device in a namespace, with this address of a network of 256."""
    enter(Path("/run/netns") / namespace)
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), TUN | NO_HEADER))
    ip("address", "add", f"{address}/24", "dev", DEVICE)
    ip("link", "set", DEVICE, "mtu", str(MTU), "up")
    return device


async def main(ends: list[str], shape: list[str], seed: int) -> None:
    first, second = device_in(*ends[:2]), device_in(*ends[2:])
    ms, loss, mbit = map(float, shape)
    for number, way in enumerate(((first, second), (second, first))):
        Direction(*way, ms / 1000, loss, mbit * 1e6 / 8, 2 * seed + number)
    print("up", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:5], sys.argv[5:8], int(sys.argv[8])))
