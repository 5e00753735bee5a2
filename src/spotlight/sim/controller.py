"""One life of the real controller over simulated machines: run log, wiring, hub, loop, as in `spotlight.run`.

A life ends in one of three ways: the run is finished; it stopped for a reason and can be resumed; the process died,
which is a `PowerCut` raised where the disk is written or an event was just recorded.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from enum import StrEnum

from spotlight.config import RunConfig
from spotlight.control.scheduler.scheduler import Scheduler
from spotlight.core.clock import Clock
from spotlight.core.errors import Stopped
from spotlight.core.events import RunStopped
from spotlight.core.journal import Disk
from spotlight.core.node_spec import NodeSpec
from spotlight.folder import RunFolder
from spotlight.loop import Limits
from spotlight.run_log import RunLog
from spotlight.sim.sim_world import SimWorld
from spotlight.wiring import MakeScheduler, Wired, wire


class PowerCut(BaseException):
    """The controller's process dies at this point."""


class Ending(StrEnum):
    FINISHED = "finished"
    STOPPED = "stopped"
    DIED = "died"


class NoLimits:
    """No budget and no order to drain."""

    def check(self) -> None:
        pass


class Controller:
    """Use once: begins or reopens the run in `folder`, runs it to an ending, releases everything."""

    def __init__(
        self,
        config: RunConfig,
        folder: RunFolder,
        world: SimWorld,
        clock: Clock,
        disk: Disk | None = None,
        recipe: str = "storm",
        scheduler: MakeScheduler = Scheduler,
    ) -> None:
        self._world = world
        self._scheduler = scheduler
        self.limits: Limits = NoLimits()
        self.reason = ""
        """Why the run stopped."""
        if folder.config.exists():
            self.run_log = RunLog.reopen(config, folder, clock, disk)
        else:
            self.run_log = RunLog.begin(config, recipe, folder, clock, disk)

    async def live(self, specs: Sequence[NodeSpec], ready: Callable[[Wired], None]) -> Ending:
        """Run to an ending; `ready` is called when everything is wired, before the first message."""
        world, run_log = self._world, self.run_log
        try:
            wired = wire(run_log, world.send, world.storage, self.limits, scheduler=self._scheduler)
            ready(wired)
            world.failed = wired.hub.fail
            world.plug(wired.hub, specs)
            try:
                await _first(wired.loop.run(), wired.hub.tick_forever())
            finally:
                # Ends every wait in the background.
                wired.hub.fail(Stopped("this life of the controller is over"))
            run_log.emit(RunStopped(reason="all iterations are done", finished=True))
            return Ending.FINISHED
        except PowerCut:
            return Ending.DIED
        except Stopped as stopped:
            self.reason = str(stopped)
            try:
                run_log.emit(RunStopped(reason=str(stopped)))
            except (Stopped, PowerCut):
                return Ending.DIED
            return Ending.STOPPED
        finally:
            world.unplug()
            run_log.close()


async def _first(*jobs: Coroutine[None, None, None]) -> None:
    """Wait until one job ends, with or without an error; cancel the others."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
