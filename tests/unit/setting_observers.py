"""Effects of settings, as functions of the settings: a journal, a message, a training step, a refusal.

Nothing here returns settings as they were given: the effect is observed in what the code does with them. All is cheap:
virtual time, a model of two layers, no processes.
"""

import asyncio
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
import torch
from dispatch_stories import dispatcher_with
from fake_gpus import fake_gpus
from journal_stories import FussyDisk, HandClock, segments
from node_crew_stories import A100, H100, CrewNode
from regroup_stories import A, B, C, D, Node
from tiny_models import RUN_SEED, grouped_samples, tiny_adapter, tiny_experience, tiny_sampling

from spotlight.budget import Budget
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.rewards import registry
from spotlight.compute.rewards.config import weights_of
from spotlight.compute.train import trainer as trainer_module
from spotlight.compute.train.checkpoint import state_copy
from spotlight.compute.train.config import FlowGrpoConfig
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.digest import digest
from spotlight.config import RunConfig
from spotlight.control.market.prices import PriceTable
from spotlight.control.profiles import Profile
from spotlight.controller.door import Door
from spotlight.controller.gang_members import GangMembers
from spotlight.controller.hub import Hub
from spotlight.controller.payloads import PayloadFolder
from spotlight.core import messages as m
from spotlight.core.clock import RealClock
from spotlight.core.errors import SpotlightError
from spotlight.core.events import Restored, RunStarted
from spotlight.core.journal import Journal, read
from spotlight.core.types import NodeId, Prompt, Sample, SamplerKind, Version, Window, WorkerId
from spotlight.core.work import Request, SlotClass, Work
from spotlight.folder import RunFolder
from spotlight.node.equipment import equip
from spotlight.node.launch import AgentLaunch
from spotlight.node.notices.notice import SourceFailed
from spotlight.node.notices.notice_sources import chosen, made
from spotlight.node.worker_settings import WorkerSettings
from spotlight.pools.devices import DeviceTable
from spotlight.pools.local import LocalPool
from spotlight.preflight import PlannedRun, memory_of
from spotlight.run import Run, check, devices_of
from spotlight.run_log import RunLog
from spotlight.sim.learning import LearningModel, ModelNumerics
from spotlight.sim.simulate import Simulation, simulate
from spotlight.sim.virtual_loop import run_virtually
from spotlight.wiring import gang_settings, wire

Observer = Callable[[RunConfig, Path], object]
PROFILE = Profile.load("h200-qwen-image-512")
MODEL = LearningModel(
    name="story", source="made up", base=0.5, limit=0.9, rate=0.05, prompt_std=0.1, seed_std=0.2,
    fidelity={2: 0.5, 4: 0.8},
)  # fmt: skip
PRICES = PriceTable.load(None)


class Refusal(NamedTuple):
    """A refusal, which is an observation too."""

    sentence: str


def observed(observer: Observer, config: RunConfig, folder: Path) -> object:
    """Observe in an empty folder of always the same name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    try:
        return observer(config, folder)
    except SpotlightError as error:
        return Refusal(str(error))


class Noting(ModelNumerics):
    """Also notes how every finished sample was drawn; previews are journaled without that."""

    def __init__(self, config: RunConfig) -> None:
        rewards = tuple(weights_of(config.reward.rewards("")))
        super().__init__(MODEL, config.seed, config.rollout.steps, rewards)
        self.drawn: Counter[tuple[Work, Sample]] = Counter()

    def score(self, request: Request, weights_digest: str) -> m.Score:
        self.drawn[request.work, request.sample] += 1
        return super().score(request, weights_digest)


def journal(config: RunConfig, folder: Path) -> object:
    """The timed events of a simulated run, without the record that holds the digest of the settings."""
    numerics, run = Noting(config), RunFolder(folder)
    simulate(Simulation(config=config, recipe="story", profile=PROFILE, numerics=numerics, prices=PRICES), run)
    records = [record for record in read(run.journal) if not isinstance(record.event, RunStarted)]
    return [(record.at, record.event) for record in records], numerics.drawn


def encoded(config: RunConfig, folder: Path) -> object:
    """Files that an encoder has written before the first iteration, where each takes a megabyte."""
    run_log = RunLog.begin(config, "story", RunFolder(folder), RealClock())
    made = EmbeddingFolder.of(run_log.folder.embeddings, run_log.facts, config.model)

    async def encode(texts: Sequence[str], progress: Callable[[str], None]) -> None:
        made.path.mkdir(exist_ok=True)
        for text in texts:
            made.file(text).write_bytes(bytes(10**6))

    storage = PayloadFolder(folder, lambda kept: None)
    budget = Budget(config.budget, lambda: 0.0, lambda: 0.0, "story")
    wired = wire(run_log, lambda outgoing: None, storage, budget, encode)

    async def begin() -> None:
        await wired.loop.embeddings.ready(0)
        wired.loop.embeddings.close()

    asyncio.run(begin())
    run_log.close()
    return sorted(path.name for path in made.path.iterdir())


def launch_of(config: RunConfig, folder: Path) -> AgentLaunch:
    """The launch of the first reserved node of a real run; nothing is started."""
    output = config.output.model_copy(update={"folder": str(folder), "name": "run"})
    run = Run.start(config.model_copy(update={"output": output}), "story", PRICES, DeviceTable())
    run.run_log.close()

    async def made() -> AgentLaunch:
        spec = config.cluster.reserved_nodes()[0]
        return LocalPool(run.pool_settings("token")).launch_of(spec, NodeId("reserved-1.1"))

    return asyncio.run(made())


def announced(config: RunConfig, folder: Path) -> object:
    """Number of lines that tell how other machines join."""
    output = config.output.model_copy(update={"folder": str(folder), "name": "run"})
    run = Run.start(config.model_copy(update={"output": output}), "story", PRICES, DeviceTable())
    run.run_log.close()
    lines: list[str] = []
    run.announce = lines.append

    async def open_and_close() -> None:
        door = Door("token")
        dispatcher, _ = dispatcher_with(SlotClass.RESERVED)
        run.pool_for(door, Hub(dispatcher, RealClock(), door.send), run.config.cluster.listen)
        await door.close()

    asyncio.run(open_and_close())
    return len(lines)


def launch(config: RunConfig, folder: Path) -> object:
    """The launch of the agent and its worker, one field each; whole sections are left out."""
    found = launch_of(config, folder)
    settings = WorkerSettings.model_validate_json(found.settings)
    worker = msgspec.structs.replace(found.for_worker(0), settings=b"")
    return msgspec.structs.replace(found, settings=b"", elastic=""), worker, settings.pace, settings.rows


def notices(config: RunConfig, folder: Path) -> object:
    """Sources that an agent watches, their pauses, and the seconds of a notice or the reason why there is none."""

    settings, clock = launch_of(config, folder).notices_config(), HandClock()

    async def polled() -> object:
        sources = [one for name in await chosen(settings, clock, {}) for one in made(name, settings, clock)]
        seen = []
        for source in sources:
            try:
                notice = None if source.name == "sigterm" else await source.poll()
            except SourceFailed as failed:
                seen.append((source.name, source.pause_s, str(failed)))
            else:
                seen.append((source.name, source.pause_s, notice and notice.seconds_left(clock.now())))
        return seen

    return asyncio.run(polled())


def judged(config: RunConfig, folder: Path) -> object:
    """Iterations whose held-out pictures the second judge scores, and its name."""
    found = launch_of(config, folder)
    sample = Sample(prompt=Prompt(text="a").id, seed=0, sampling=tiny_sampling(), version=Version(0))
    requests = [
        Request(work=Work.EVALUATION, iteration=n, group=0, sample=sample) for n in range(config.iterations + 1)
    ]
    return found.judge and found.judge.name, [request.iteration for request in requests if found.is_judged(request)]


def trained(config: RunConfig, folder: Path) -> object:
    """Weights, averages and figures after the steps of an iteration of a tiny model, and the rows of its forwards."""
    adapter = tiny_adapter()
    forwards: list[int] = []
    adapter.transformer.register_forward_hook(lambda module, given, made: forwards.append(len(made[0])))
    blocks: list[int] = []
    adapter.transformer.transformer_blocks[0].register_forward_pre_hook(lambda *args: blocks.append(1))
    stale = config.pipeline.asynchrony
    trainer = Trainer(adapter, config.train, config.algorithm, RUN_SEED, keeps_before=stale)
    flows = isinstance(config.algorithm, FlowGrpoConfig)
    sampling = tiny_sampling(SamplerKind.FLOW_SDE, Window(0, 2)) if flows else tiny_sampling()
    # All of version 0: in iteration 1 they are stale.
    experience = replace(tiny_experience(adapter, grouped_samples(sampling)), iteration=int(stale))
    if stale:
        experience = _less_likely(experience)
        trainer.objective_state["clip_fractions"].copy_(torch.tensor([0.1, 0.9]))
    reports = trainer.run_iteration(experience, [(0, 1), (2, 3), (4, 5), (6, 7)])
    return digest(state_copy(trainer)), reports, forwards, len(blocks)


class _RecordingGang:
    """A gang that records which exchanges a trainer sets up."""

    rank, ranks = 0, 2

    def __init__(self) -> None:
        self.asked: list[object] = []

    def crew(self, size: int) -> None:
        self.asked.append(size)


def shared_model(config: RunConfig, folder: Path) -> object:
    """Crews that a trainer forms in its gang, and whether it divides the weights."""
    gang = _RecordingGang()
    train = Trainer(tiny_adapter(), config.train, config.algorithm, RUN_SEED)
    with patch.object(trainer_module, "shard", lambda transformer, gang: gang.asked.append("sharded")):
        train.join(gang)  # type: ignore[arg-type]
    return gang.asked


def _less_likely(experience: Experience) -> Experience:
    """Make the samples less likely under the weights that drew them than under the current ones."""
    rollout = experience.rollout
    return replace(experience, rollout=replace(rollout, log_prob_BK=rollout.log_prob_BK - 0.1))


def precision(config: RunConfig, folder: Path) -> object:
    """Precision of a worker's matmuls once it has its model."""
    found = launch_of(config, folder)
    before = torch.get_float32_matmul_precision()
    try:
        settings = WorkerSettings.model_validate_json(found.settings)
        equip(msgspec.structs.replace(found.for_worker(0), trains=False), settings, lambda message: None)
        return torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)


def accelerated(config: RunConfig, folder: Path) -> object:
    """Kernels that a worker reports, and whether its previews are in fp8; nothing is compiled before a forward."""
    found = launch_of(config, folder)
    settings = WorkerSettings.model_validate_json(found.settings)
    made = equip(msgspec.structs.replace(found.for_worker(0), trains=False), settings, lambda message: None)
    return made.kernels, made.resident.rounds


def gang_after_a_loss(config: RunConfig, folder: Path) -> object:
    """The workers that form the next gang when the last rank of a gang has died."""
    settings = gang_settings(config)
    members = GangMembers(settings)
    workers = [WorkerId(f"{slot.replace('/', '.1/')}.1") for slot in settings.slots]
    for worker in workers:
        members.join(worker, kind="")
    members.keep(workers[:-1])
    members.lost(workers[:-1], now=10.0)
    return members.next_gang(now=10.0)


def devices(config: RunConfig, folder: Path) -> object:
    """Devices of the slots, on a machine with two GPUs."""
    with fake_gpus(2):
        return str(devices_of(config))


def fitted(config: RunConfig, folder: Path) -> object:
    """What is chosen from the memory plan, on a machine with two GPUs."""
    with fake_gpus(2):
        return memory_of(PlannedRun.new(config, "story"), devices_of(config)).sentences()


def run_check(config: RunConfig, folder: Path) -> object:
    check(config, PRICES)
    return "accepted"


def reward_code(config: RunConfig, folder: Path) -> object:
    """The version of the reward's code, and the score that it gives."""
    assert config.reward.name is not None
    path = list(sys.path)
    try:
        with registry.importing_from(config.reward.folder):
            reward = registry.create(config.reward.name, config.reward.options)
            return reward.version, reward.score([np.zeros((4, 4, 3), np.uint8)], [Prompt(text="a")])
    finally:
        sys.path[:] = path
        sys.modules.pop(config.reward.name.partition(":")[0], None)


def run_folder(config: RunConfig, folder: Path) -> object:
    return RunFolder.planned(config.output, "story").path


def written(config: RunConfig, folder: Path) -> object:
    """Syncs of the disk and files of a journal, one durable record a second."""
    clock, disk = HandClock(), FussyDisk()
    syncs = []
    with Journal.create(folder / "journal", clock.now, config.output.journal, disk.disk()) as kept:
        for step in range(40):
            clock.seconds += 1
            kept.append(Restored(step=step, reason="a story of one second each"))
            syncs.append(disk.syncs)
    return syncs, len(segments(folder / "journal"))


def crews(config: RunConfig, folder: Path) -> object:
    """The crews of a node of two kinds of slots, with a sample, then with two, and when they formed."""

    async def scenario() -> object:
        node = CrewNode(config=config.cluster.elastic)
        loop = asyncio.get_running_loop()
        await node.join(A, B, kind=H100)
        await node.join(C, D, kind=A100)
        await node.lease(A)
        seen = []
        for _ in range(12):
            await asyncio.sleep(0.5)
            seen.append((loop.time(), node.now_in_crews))
            if node.now_in_crews:
                node.crews.receive(A, m.Alive(gain=1.01))
                node.crews.changed()
        return seen

    return run_virtually(scenario())


def deadlines(config: RunConfig, folder: Path) -> object:
    """Deadlines of members that prepare, connect, step for the first time, step again, and disband."""
    node = Node(A, B, config=config.cluster.elastic)
    seen = []

    def look() -> None:
        deadline = node.regroup.next_deadline()
        seen.append(None if deadline is None else deadline - node.now)

    node.wish((A, B))
    look()
    node.prepare(A, B)
    look()
    node.connect(A, B)
    token = node.token(A)
    for number in range(30):
        node.forward(A, number)
        look()
        node.later(1.0)
        node.done(A, number)
        node.done(B, number)
    node.broke(A, token)
    node.later(0.1)
    look()
    return seen
