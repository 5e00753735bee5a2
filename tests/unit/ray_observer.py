"""The effect of settings of a Ray cluster: the order to the run's process there, and what it starts."""

import asyncio
from pathlib import Path
from unittest.mock import patch

import msgspec

from spotlight.config import RunConfig
from spotlight.pools.ray import RayCluster, connect_order
from spotlight.pools.ray_lines import Connected, ConnectRay, RayNode
from spotlight.pools.ray_membership import RayMembership


def ray_placed(config: RunConfig, folder: Path) -> object:
    """The order to the run's process in a Ray cluster, and the machines that it starts on three nodes there."""
    orders = FakeRayDriver()
    with patch("asyncio.create_subprocess_exec", orders.start):
        asyncio.run(RayCluster(connect_order(config.cluster, config.model.device, folder)).connect())
    order = msgspec.json.decode(orders.written, type=ConnectRay)
    table = [
        RayNode(id="1", name="labelled", labels={"spotlight": "spot", "tier": "cheap"}, resources={"CPU": 8.0}),
        RayNode(id="2", name="stocked", resources={"CPU": 8.0, "old": 1.0}),
        RayNode(id="3", name="kept", labels={"spotlight": "reserved"}, resources={"CPU": 8.0}),
    ]
    return order.address, RayMembership(order).look(table, {}, 0.0)


class FakeRayDriver:
    """Stands in for the process, and keeps what it receives."""

    returncode = 0

    def __init__(self) -> None:
        self.written = b""
        self.stdin = self

    async def start(self, *command: object, **settings: object) -> "FakeRayDriver":
        self.stdout = asyncio.StreamReader()
        self.stdout.feed_data(msgspec.json.encode(Connected(version="2.60.0", host="10.0.0.1", nodes=())) + b"\n")
        return self

    def write(self, line: bytes) -> None:
        self.written += line
