"""A run from its recipe to its end: starts the machines, runs the loop, and stops the machines again.

    NEW --start--> RUNNING --finished--> DONE
                      | ^
      drain, budget,  | |  resume: the journal is the whole state
      Ctrl-C, crash   v |
                    STOPPED

Whatever ends a run, resume is the same: fold the journal, release what was leased, restore the gang, go on.
"""

import asyncio
import random
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

from spotlight.budget import Budget
from spotlight.chronicle import Chronicle
from spotlight.config import RunConfig
from spotlight.control.market.bill import settle
from spotlight.control.market.prices import PriceTable
from spotlight.control.market.traces import Trace
from spotlight.core.clock import RealClock
from spotlight.core.errors import Stopped
from spotlight.core.events import RunStopped
from spotlight.core.journal import JournalUnwritable
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.runtime.hub import Hub, SocketDoor
from spotlight.runtime.local_pool import LocalPool, LocalPoolSettings, sockets
from spotlight.runtime.market import Market
from spotlight.runtime.orders import Done, DrainRun, DrillRun, RunOrder, listen
from spotlight.runtime.payloads import PayloadFolder
from spotlight.runtime.pool import Departure, NodeDown
from spotlight.runtime.worker_settings import WorkerSettings
from spotlight.wiring import Wired, wire


class Run:
    """One life of a run on this machine."""

    def __init__(self, chronicle: Chronicle) -> None:
        self.chronicle = chronicle
        self.config = chronicle.config
        self.folder = chronicle.folder
        self._prices = PriceTable.load(None)
        self._budget = Budget(self.config.budget, self._hours, self._dollars, self.folder.name)

    @classmethod
    def start(cls, config: RunConfig, recipe: str) -> "Run":
        folder = RunFolder.create(config.output, recipe)
        return cls(Chronicle.begin(config, recipe, folder, RealClock()))

    @classmethod
    def resume(cls, folder: RunFolder, config: RunConfig) -> "Run":
        return cls(Chronicle.reopen(config, folder, RealClock()))

    async def execute(self) -> None:
        """To the end, or to a reason to stop; either way the journal says which, and nobody is left behind."""
        door = SocketDoor(secrets.token_hex(16))
        storage = PayloadFolder(self.folder.path, self.folder.keep_newest_checkpoints)
        wired = wire(self.chronicle, door.send, storage, self._budget)
        try:
            with self._signals(wired.hub):
                async with self._machines(door, wired.hub) as pool:
                    await self._work(wired, pool)
        finally:
            self.chronicle.close()

    async def _work(self, wired: Wired, pool: LocalPool) -> None:
        hub = wired.hub
        hub.kill = pool.kill_worker
        jobs = (
            hub.tick_forever(),
            self.chronicle.sync_forever(),
            self._market(pool),
            _watch(pool),
            self._orders(pool, hub),
        )
        tasks = [asyncio.create_task(_guarded(job, hub)) for job in jobs]
        try:
            await wired.loop.run()
            self.chronicle.emit(RunStopped(reason="all iterations are done", finished=True))
            # Machines that are let go now are no losses.
            hub.fail(Stopped("the run is over"))
        except Stopped as stopped:
            hub.fail(stopped)
            with suppress(JournalUnwritable):
                self.chronicle.emit(RunStopped(reason=str(stopped)))
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @asynccontextmanager
    async def _machines(self, door: SocketDoor, hub: Hub) -> AsyncIterator[LocalPool]:
        """The pool with its reserved nodes; everything that was started is ended with it."""
        config = self.config
        controller = sockets(self.folder.path) / "hub.sock"
        pool = LocalPool(
            LocalPoolSettings(
                run=self.folder.path,
                controller=controller,
                token=door.token,
                entry="spotlight.runtime.worker:entry",
                preload=("spotlight.runtime.worker",),
                worker_settings=self._worker_settings(),
                reward=config.reward.name or self.chronicle.facts.world.reward,
                reward_processes=config.reward.processes,
                reward_timeout_s=config.reward.timeout_s,
                cluster=config.cluster,
                heads=self.chronicle.facts.heads,
                token_pixels=self.chronicle.facts.token_pixels,
            )
        )
        try:
            await pool.start()
            await door.open(controller, hub)
            for spec in config.cluster.reserved_nodes(config.market.reserved_price):
                await pool.add_node(spec)
            yield pool
        finally:
            await pool.stop()
            await door.close()

    async def _market(self, pool: LocalPool) -> None:
        """Spot nodes as the trace says, or all of them from now on."""
        config = self.config
        specs = {spec.name: spec for spec in config.cluster.spot_nodes(config.market.spot_price)}
        if config.market.trace is None:
            for spec in specs.values():
                await pool.add_node(spec)
            return
        trace = Trace.load(config.market.trace).compressed(config.market.speed)
        await Market(trace, pool, specs).replay()

    async def _orders(self, pool: LocalPool, hub: Hub) -> None:
        """What other terminals ask for."""

        async def obey(order: RunOrder) -> Done:
            match order:
                case DrainRun():
                    self._budget.drain_asked = True
                    return Done("the run stops when its iteration is done")
                case DrillRun():
                    return await self._drill(order, pool, hub)

        await listen(sockets(self.folder.path), obey)

    async def _drill(self, order: DrillRun, pool: LocalPool, hub: Hub) -> Done:
        directory = hub.dispatcher.directory
        candidates = sorted(directory.workers) if order.reserved else directory.rolling()
        count = min(len(candidates), max(1, round(order.share * len(candidates))))
        chosen = sorted(random.SystemRandom().sample(candidates, count))
        seq = self.chronicle.next_seq
        await asyncio.gather(*(pool.kill_worker(worker) for worker in chosen))
        return Done(f"killed {count} of {len(candidates)} workers", tuple(chosen), seq)

    def _worker_settings(self) -> bytes:
        config = self.config
        settings = WorkerSettings(
            run_seed=config.seed,
            run_folder=str(self.folder.path),
            deterministic=config.deterministic,
            model=config.model,
            train=config.train,
            algorithm=config.algorithm,
        )
        return settings.model_dump_json().encode()

    @contextmanager
    def _signals(self, hub: Hub) -> Iterator[None]:
        """The first Ctrl-C drains at the end of the iteration; the second stops at once. Both can be resumed."""
        loop = asyncio.get_running_loop()

        def asked() -> None:
            if not self._budget.drain_asked:
                sys.stderr.write("stopping at the end of the iteration; once more stops at once\n")
            else:
                hub.fail(Stopped(f"stopped at once; `spotlight resume {self.folder.name}` goes on."))
            self._budget.drain_asked = True

        for which in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(which, asked)
        try:
            yield
        finally:
            for which in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(which)

    def _hours(self) -> float:
        return self.chronicle.run_time() / 3600

    def _dollars(self) -> float:
        return settle(self.chronicle.meter.tallies(), self._prices, self.config.cluster.reserved).dollars


async def _watch(pool: LocalPool) -> None:
    """A reserved node that is given up ends the run: nobody could train."""
    async for event in pool.events():
        if not isinstance(event, NodeDown) or event.returns or event.departure is not Departure.CRASHED:
            continue
        if event.spec.slot_class is SlotClass.RESERVED:
            raise Stopped(f"the reserved node {event.node} cannot be kept alive ({event.cause}); look there.")


async def _guarded(job: Coroutine[None, None, None], hub: Hub) -> None:
    """A background task that dies takes the run with it, instead of leaving it to hang."""
    try:
        await job
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        hub.fail(error)
