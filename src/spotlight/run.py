"""A run from its recipe to its end: starts the machines, runs the loop, stops the machines.

    NEW --start--> RUNNING --finished--> DONE
                      | ^
      drain, budget,  | |  resume: the journal is the whole state
      Ctrl-C, crash   v |
                    STOPPED

Resume is the same after every end: fold the journal, release all leases, restore the gang, continue.
"""

import asyncio
import random
import secrets
import shutil
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

from spotlight.budget import Budget
from spotlight.compute.models.base_copy import copy_base
from spotlight.compute.models.catalogue import facts_of
from spotlight.compute.models.encoder_process import encode
from spotlight.compute.models.fetched import RANDOM_TINY
from spotlight.compute.models.sources import SourceKind, is_shipped, resolve
from spotlight.compute.profiling.pace import NEEDED
from spotlight.compute.weights.index import read_index
from spotlight.config import RunConfig, check_model
from spotlight.control.market.bill import settle
from spotlight.control.market.capacity import is_stand_in
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Operation, Profile
from spotlight.controller.door import Door
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import PayloadFolder
from spotlight.core.clock import RealClock
from spotlight.core.errors import ConfigError, EnvironmentProblem, InputError, SpotlightError, Stopped, exit_code_of
from spotlight.core.events import RunStopped
from spotlight.core.journal import JournalUnwritable
from spotlight.core.run_files import run_around
from spotlight.core.tls import split_address
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.orders import Done, DrainRun, DrillRun, RenewToken, RunOrder, listen
from spotlight.pools.blob_home import BlobHomeSettings
from spotlight.pools.config import PoolKind
from spotlight.pools.devices import DeviceTable, table_for
from spotlight.pools.join_pool import JoinPool, JoinSettings, joining_lines, reachable
from spotlight.pools.local import LocalPool, LocalPoolSettings
from spotlight.pools.machine import sockets
from spotlight.pools.market import StandIns, bring_spot
from spotlight.pools.pool import Departure, NodeDown, Pool
from spotlight.pools.ray import LOG, RayCluster, RayMachines, RayPool, connect_order
from spotlight.pools.tokens import RunSecrets
from spotlight.presence import Presence
from spotlight.run_log import RunLog
from spotlight.run_settings import HUB, pool_settings
from spotlight.speed_check import check_speed
from spotlight.stopping import Stopping
from spotlight.wiring import Wired, wire


class Run:
    """One life of a run on this machine."""

    def __init__(self, run_log: RunLog, prices: PriceTable, devices: DeviceTable) -> None:
        self.run_log = run_log
        self.devices = devices
        self.config = run_log.config
        self.folder = run_log.folder
        self.prices = prices
        self._budget = Budget(self.config.budget, self._hours, self._dollars, self.folder.word)
        self._is_end_recorded = False
        self._secrets: RunSecrets | None = None
        self._ray: RayCluster | None = None
        self._farewell = JoinPool.STOPPED
        self.announce: Callable[[str], None] = lambda line: None
        """Shows a line to the user, while the run lives."""
        self.beside: list[Callable[[Callable[[str, str], None]], Coroutine[None, None, None]]] = []
        """Jobs from when signals are handled; each receives a function that records a problem of a source."""

    @classmethod
    def start(cls, config: RunConfig, recipe: str, prices: PriceTable, devices: DeviceTable | None = None) -> "Run":
        """`devices` are those that the preflight found, if there was one."""
        check(config, prices)
        _check_pace(config, recipe)
        devices = devices or devices_of(config)
        folder = RunFolder.create(config.output, recipe)
        RunSecrets.forget(folder.path)
        try:
            config = _with_own_base(config, folder)
        except BaseException:
            shutil.rmtree(folder.path)
            raise
        return cls(RunLog.begin(config, recipe, folder, RealClock()), prices, devices)

    @classmethod
    def resume(
        cls, folder: RunFolder, config: RunConfig, prices: PriceTable, devices: DeviceTable | None = None
    ) -> "Run":
        """Resume with these settings and store them."""
        check(config, prices)
        devices = devices or devices_of(config)
        # The journal is locked first: if another process works on the run, nothing may be written.
        run = cls(RunLog.reopen(config, folder, RealClock()), prices, devices)
        try:
            _check_checkpoint(run.run_log)
            folder.write_config(config.model_dump(mode="json"))
        except BaseException as error:
            run.refuse(error)
            raise
        return run

    def refuse(self, error: BaseException) -> None:
        """End before the first machine starts, because of this error."""
        self._record_end(error)
        self.run_log.close()

    async def execute(self) -> None:
        """Run to the end or to a stop; the journal records which, and every process is ended."""
        try:
            await self._live()
        except BaseException as error:
            self._record_end(error)
            raise
        finally:
            self.run_log.close()

    async def _live(self) -> None:
        door = Door(secrets.token_hex(16), self.config.cluster.grace_s)
        storage = PayloadFolder(self.folder.path, self.folder.keep_newest_checkpoints)
        wired = wire(self.run_log, door.send, storage, self._budget, self._encode)
        hub, embeddings = wired.hub, wired.loop.embeddings
        path, awaited = self.folder.path, lambda: embeddings.progress or hub.waiting_for()
        presence = Presence(path, awaited, hub.quiet_s, door.standings)
        stopping = Stopping(self.folder.word, self._budget, presence, self._drain_s, hub.fail)
        with stopping, presence:
            note = wired.hub.dispatcher.setbacks.note
            jobs = (presence.keep(), *(job(note) for job in self.beside))
            keeping = asyncio.gather(*(_guarded(job, wired.hub) for job in jobs))
            try:
                # Before the workers load their models, so that the text encoders have the device to themselves.
                await embeddings.ready(self.run_log.state.iterations_done)
                async with self._machines(door, hub) as pool:
                    stopping.started()
                    await self._work(wired, pool, stopping)
                storage.finished()
            except asyncio.CancelledError:
                if stopping.stopped is None:
                    raise
                raise stopping.stopped from None
            finally:
                embeddings.close()
                keeping.cancel()
                await asyncio.gather(keeping, return_exceptions=True)

    async def _encode(self, texts: Sequence[str], progress: Callable[[str], None]) -> None:
        reserved = self.config.cluster.reserved_nodes()[0]
        device = self.devices.of(reserved)[0].name
        log = self.folder.path / "logs" / "encoder.log"
        await encode(self.config.model, device, self.folder.embeddings, texts, log, progress)

    def _drain_s(self) -> float:
        """Twice the longest iteration plus the start of a worker."""
        return self.config.cluster.start_s + 2 * self.run_log.state.longest_iteration_s

    async def _work(self, wired: Wired, pool: Pool, stopping: Stopping) -> None:
        hub, cluster, market = wired.hub, self.config.cluster, self.config.market
        hub.kill = pool.kill_worker
        purse = self._budget.purse(self.config.iterations, cluster, market, self.prices)
        stand_ins = StandIns.of(cluster, market, pool, market.speed, purse)
        self.run_log.watchers.append(stand_ins.observe)
        jobs = (
            hub.tick_forever(),
            self.run_log.sync_forever(),
            *((bring_spot(cluster, market, pool, haste=market.speed),) if cluster.pool is PoolKind.LOCAL else ()),
            stand_ins.keep(),
            _watch(pool, hub),
            self._orders(pool, hub, stopping),
        )
        tasks = [asyncio.create_task(_guarded(job, hub)) for job in jobs]
        try:
            await wired.loop.run()
            self._record_end(None)
            # From now on released machines are not losses.
            hub.fail(Stopped("the run is over"))
        except BaseException as error:
            hub.fail(error)
            # Before the machines are released: that may take a while, and may be cut short.
            self._record_end(error)
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _record_end(self, error: BaseException | None) -> None:
        """Record once how this life ended; None: all iterations are done."""
        if self._is_end_recorded or isinstance(error, asyncio.CancelledError):
            return
        self._is_end_recorded = True
        stopped = RunStopped(reason="all iterations are done", finished=True)
        if error is None:
            self._farewell = JoinPool.FINISHED
        else:
            reason = str(error) if isinstance(error, SpotlightError) else f"{type(error).__name__}: {error}"
            stopped = RunStopped(reason=reason, failed=exit_code_of(error) != Stopped.exit_code)
        with suppress(JournalUnwritable):
            self.run_log.emit(stopped)

    @asynccontextmanager
    async def _machines(self, door: Door, hub: Hub) -> AsyncIterator[Pool]:
        """The pool with its reserved nodes; all processes end with it."""
        pool: Pool | None = None
        try:
            pool = self.pool_for(door, hub, await self._listen())
            await pool.start()
            await door.open(sockets(self.folder.path) / HUB, hub)
            for spec in self.config.cluster.reserved_nodes(self.config.market.reserved_price):
                await pool.add_node(spec)
            yield pool
        finally:
            if pool is not None:
                await pool.stop()
            if self._ray is not None:
                await self._ray.stop()
            await door.close()

    async def _listen(self) -> str | None:
        """HOST:PORT for other machines, which are first looked for in the Ray cluster."""
        cluster = self.config.cluster
        if cluster.pool is not PoolKind.RAY:
            return cluster.listen
        logs = self.folder.path / "logs"
        logs.mkdir(exist_ok=True)
        self._ray = RayCluster(connect_order(cluster, self.config.model.device, self.folder.path), logs / LOG)
        connected = await self._ray.connect()
        return cluster.listen or reachable(connected.host, 0)

    def pool_for(self, door: Door, hub: Hub, listen: str | None) -> Pool:
        """The local pool; at an address also other machines, for which the door listens from now on."""
        settings = self.pool_settings(door.token)
        local = LocalPool(settings)
        if listen is None:
            return local
        host, port = split_address(listen)
        self._secrets = RunSecrets(self.folder.path)
        port = door.listen_tls(host, port, hub, self._secrets.identity)
        address = reachable(host, port)
        self._secrets.listens_at(address)
        for line in joining_lines(address, self.folder.name):
            self.announce(line)
        offered = JoinSettings(
            pool=settings,
            market=self.config.market,
            device=self.config.model.device,
            deterministic=self.config.deterministic,
            address=address,
            blobs=BlobHomeSettings(
                folder=self.folder.path,
                host=host,
                port=port + 1 if split_address(listen)[1] else 0,
                identity=self._secrets.folder,
                secret=secrets.token_hex(32),
            ),
        )
        if self._ray is None:
            pool = JoinPool(local, door, offered, self._secrets)
        else:
            note = partial(hub.dispatcher.setbacks.note, "ray")
            pool = RayPool(local, door, offered, self._secrets, RayMachines(self._ray, note))
        pool.farewell = lambda: self._farewell
        pool.announce = self.announce
        return pool

    def pool_settings(self, token: str) -> LocalPoolSettings:
        """Settings of the run's agents and workers."""
        return pool_settings(self.run_log, self.devices, token)

    async def _orders(self, pool: Pool, hub: Hub, stopping: Stopping) -> None:
        """Serve orders from other terminals."""

        async def carry_out(order: RunOrder) -> Done:
            match order:
                case DrainRun():
                    seconds = stopping.drain()
                    return Done(f"the run stops when its iteration is done, at the latest in {seconds:.0f} s")
                case DrillRun():
                    return await self._drill(order, pool, hub)
                case RenewToken():
                    return self._renew_token()

        await listen(sockets(self.folder.path), carry_out)

    def _renew_token(self) -> Done:
        if self._secrets is None:
            return Done("the run does not listen, so it has no token; resume it with --set cluster.listen=HOST:PORT")
        self._secrets.renew()
        return Done("the earlier token is revoked; machines that are connected stay")

    async def _drill(self, order: DrillRun, pool: Pool, hub: Hub) -> Done:
        directory = hub.dispatcher.directory
        candidates = sorted(directory.workers) if order.reserved else directory.rolling()
        count = min(len(candidates), max(1, round(order.share * len(candidates))))
        chosen = sorted(random.SystemRandom().sample(candidates, count))
        seq = self.run_log.next_seq
        await asyncio.gather(*(pool.kill_worker(worker) for worker in chosen))
        return Done(f"killed {count} of {len(candidates)} workers", tuple(chosen), seq)

    def _hours(self) -> float:
        return self.run_log.run_time() / 3600

    def _dollars(self) -> float:
        return settle(self.run_log.meter.tallies(), self.prices, self.config.cluster.reserved).dollars


def check(config: RunConfig, prices: PriceTable) -> None:
    """Before anything is written: refuse settings that real machines do not support yet, and missing prices."""
    if not config.reward.terms and not config.reward.processes:
        raise ConfigError(
            "reward.processes is 0, but the workers of a run leave scoring to reward processes; set it to at least 1."
        )
    _check_working_folder()
    check_model(config, facts := facts_of(config.model.name))
    check_speed(config, facts)
    prices.require(config.market.billed_by(config.cluster.spot, config.cluster.fleet))


def _check_working_folder() -> None:
    """Agents import rewards from the working folder, and a run's folder may come from an untrusted source."""
    around = run_around(Path.cwd())
    if around is not None:
        raise InputError(
            f"the working folder {Path.cwd()} is inside the run {around}, so files of that run would be imported as "
            "code; change to a folder of your own and name the run by its path."
        )


def _check_checkpoint(run_log: RunLog) -> None:
    """Before any machine starts: check that the newest checkpoint exists and can be read."""
    if (newest := run_log.state.checkpoint) is not None:
        read_index(run_log.folder.path / newest.path)


def _with_own_base(config: RunConfig, folder: RunFolder) -> RunConfig:
    """Copy base weights that do not ship, so that the run can be resumed without the original file."""
    if is_shipped(config.model.name):
        return config
    source, own = resolve(config.model.name), folder.base
    if source.kind in (SourceKind.DIFFUSERS, SourceKind.RANDOM):
        # A released model is too large to copy; its digest is checked at every start.
        own = Path(source.location)
        if config.model.name.startswith(RANDOM_TINY):
            own = folder.base_folder
            shutil.copytree(source.location, own)
    else:
        sys.stderr.write(f"copying the base weights from {config.model.name}\n")
        copy_base(config.model.name, own)
    return config.model_copy(update={"model": config.model.model_copy(update={"name": str(own)})})


def devices_of(config: RunConfig) -> DeviceTable:
    """The device of every slot; raises before anything is written if there are too few."""
    return table_for(config.model, config.cluster, stand_ins=config.market.fallback_s is not None)


def _check_pace(config: RunConfig, recipe: str) -> None:
    """Before anything is written: check that the profile has all durations of a paced run."""
    if config.cluster.pace is not None:
        profile = Profile.load(config.cluster.pace)
        profile.require(NEEDED, recipe)
        profile.seconds(Operation.OPTIMIZER_STEP, degree=config.cluster.gang)


async def _watch(pool: Pool, hub: Hub) -> None:
    """End the run if a reserved node is given up, because the gang needs it; note a spot node."""
    async for event in pool.events():
        if not isinstance(event, NodeDown):
            continue
        hub.node_ended(event.node)
        if event.returns or event.departure is not Departure.CRASHED:
            continue
        hub.dispatcher.setbacks.note(event.node, f"the node is given up: {event.cause}.")
        if event.spec.slot_class is SlotClass.RESERVED and not is_stand_in(event.spec.name):
            raise EnvironmentProblem(
                f"the reserved node {event.node} cannot be kept alive ({event.cause}), and without it nothing can be "
                "trained; look there, then resume."
            )


async def _guarded(job: Coroutine[None, None, None], hub: Hub) -> None:
    """Run a background job; its failure fails the run, which would hang without it."""
    try:
        await job
    except asyncio.CancelledError:
        raise
    except BaseException as error:
        hub.fail(error)
