"""A controller process with two working nodes, waiting to be killed: python doomed_controller.py RUN [bare]."""

import asyncio
import sys
from pathlib import Path

import msgspec
from node_world import SPOT, grant, world

from spotlight.core import messages as m
from spotlight.core.types import WorkerId


async def main() -> None:
    async with world(Path(sys.argv[1]), is_bare="bare" in sys.argv[2:], is_scored=True) as (pool, controller):
        for name in ("spot-1", "spot-2"):
            node = await pool.add_node(msgspec.structs.replace(SPOT, name=name))
            worker = WorkerId(f"{node}/0.1")
            await controller.worker(worker)
            controller.send(node, grant(5), worker)
            await controller.wait(m.Result, worker=worker)
        print("working", flush=True)  # noqa: T201 - the test waits for it
        await asyncio.Event().wait()


asyncio.run(main())
