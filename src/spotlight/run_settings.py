"""Settings of a run's agents and workers, from its configuration."""

import msgspec

from spotlight.compute.profiling.pace import TrainingCost
from spotlight.compute.rewards.config import Term
from spotlight.compute.train.config import AUTO
from spotlight.control.explore.config import Precision
from spotlight.control.profiles import Operation, Profile
from spotlight.node.paced.paced_reward import name_of as paced_reward
from spotlight.node.worker_settings import MemorySettings, PaceSettings, RowsSettings, WorkerSettings
from spotlight.pools.devices import DeviceTable
from spotlight.pools.local import LocalPoolSettings
from spotlight.pools.machine import sockets
from spotlight.run_log import RunLog
from spotlight.speed_check import compiles

HUB = "hub.sock"
"""Name of the controller's socket in the run's private folder."""


def pool_settings(run_log: RunLog, devices: DeviceTable, token: str) -> LocalPoolSettings:
    """Settings of the run's agents and workers."""
    config, facts = run_log.config, run_log.facts
    worker = "spotlight.node.worker" if config.cluster.pace is None else "spotlight.node.paced.paced_worker"
    return LocalPoolSettings(
        run=run_log.folder.path,
        controller=sockets(run_log.folder.path) / HUB,
        token=token,
        entry=f"{worker}:entry",
        preload=(worker,),
        # Builds of torch with CUDA start threads when imported; to find that out takes the whole import.
        is_bare=bool(devices.slots),
        warm="spotlight.node.equipment:open_device",
        worker_settings=_worker_settings(run_log),
        model=config.model.name if config.cluster.pace is None else "",
        rewards=_rewards(run_log),
        judge=config.second_judge(facts.judge),
        cluster=config.cluster,
        heads=facts.heads,
        token_pixels=facts.token_pixels,
        devices=devices,
    )


def _worker_settings(run_log: RunLog) -> bytes:
    config = run_log.config
    settings = WorkerSettings(
        run_seed=config.seed,
        run_folder=str(run_log.folder.path),
        deterministic=config.deterministic,
        model=config.model.model_copy(update={"compile": compiles(config, run_log.facts)}),
        train=config.train,
        algorithm=config.algorithm,
        fp8_previews=config.explores and config.explore.precision is Precision.FP8,
        takes_stale=config.pipeline.asynchrony,
        pace=_pace(run_log),
        rows=_rows(run_log),
        memory=_memory(run_log),
    )
    return settings.model_dump_json().encode()


def _rewards(run_log: RunLog) -> tuple[Term, ...]:
    cluster, rewards = run_log.config.cluster, run_log.rewards
    if cluster.pace is None:
        return rewards
    paced = paced_reward(Profile.load(cluster.pace).seconds(Operation.REWARD) / cluster.pace_speed)
    return tuple(msgspec.structs.replace(term, name=paced, options={}, device="cpu") for term in rewards)


def _pace(run_log: RunLog) -> PaceSettings | None:
    cluster = run_log.config.cluster
    if cluster.pace is None:
        return None
    cost = TrainingCost.of(run_log.config.algorithm, run_log.config.rollout, run_log.config.train.batches_over)
    return PaceSettings(
        profile=cluster.pace,
        speed=cluster.pace_speed,
        timesteps=cost.timesteps,
        forwards=cost.forwards,
        passes=cost.passes,
        over=cost.over,
        precision=run_log.config.explore.precision,
    )


def _rows(run_log: RunLog) -> RowsSettings | None:
    """The samples with which workers measure their rows; None if the rows are fixed."""
    if run_log.config.cluster.rows != AUTO:
        return None
    rollout, size = run_log.config.rollout, run_log.size
    return RowsSettings(
        most=run_log.config.samples_per_slot,
        height=size.height,
        width=size.width,
        guidance=rollout.guidance,
        window=rollout.window_size,
        prompt=run_log.prompts.longest.text,
    )


def _memory(run_log: RunLog) -> MemorySettings | None:
    if run_log.config.cluster.pace is not None:
        return None
    work = run_log.config.workload(run_log.facts, run_log.prompts.longest.text)
    return MemorySettings.of(work.rollouts, run_log.config.shards)
