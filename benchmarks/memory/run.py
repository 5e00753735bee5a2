"""Peaks of the product's trainer and engine beside the memory plan's prediction of each."""

import gc
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import torch

from benchmarks.lib.figures import Figure
from benchmarks.memory.live_bytes import LiveBytes
from spotlight.compute.memory.memory_load import Workload
from spotlight.compute.memory.memory_plan import (
    SETS_HELD,
    MemoryLine,
    MemoryPlan,
    TrainingChoice,
    gib,
    rollout_plan,
    training_plan,
)
from spotlight.compute.models.adapter import Conditioning
from spotlight.compute.models.catalogue import ModelFacts, facts_of
from spotlight.compute.models.embeddings import EmbeddingFolder
from spotlight.compute.models.loaded import load_source
from spotlight.compute.models.pipeline_adapter import PipelineAdapter
from spotlight.compute.models.sources import resolve
from spotlight.compute.models.text_encoding import write_conditioning
from spotlight.compute.rollout.denoise import Rollout
from spotlight.compute.rollout.engine import Engine, Finished, decode_images
from spotlight.compute.train.experience import Experience
from spotlight.compute.train.recomputation import recompute_first
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.weights.resident import Resident, own_copy
from spotlight.config import RunConfig, load_config
from spotlight.core.types import Prompt, Sample, Sampling, Size, Version
from spotlight.core.work import Policy, Request, WeightsId, Work
from spotlight.node.equipment import own_device

RECIPE = "qwen-image-ocr-512"
FULL = ("model.name=random:qwen-image", "model.device=cuda:0", "reward.name=jpeg", "cluster.rows=4")
TINY = ("model.name=random-tiny:qwen-image", "model.device=cpu", "reward.name=jpeg", "cluster.rows=4")
EDGES = {False: (512, 1280), True: (64, 64)}
"""Edges of trained and of rolled-out images, by whether the model is tiny."""
PROMPT = Prompt(text="a sign")
TOKENS = 40
STEPS = 4
TRAINED = ((4, True), (8, True), (4, False))
"""Rows per forward, and whether the blocks are recomputed; the last may not fit."""
ROLLED_OUT = 4


class Peaks:
    """Peak bytes of a device: torch's allocator, or on a CPU the tensors that exist and those that are made."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.on_gpu = device.type == "cuda"
        self.static = 0
        """Bytes of the tensors that exist before a measurement; a CPU has no allocator to ask."""
        self.allocated = 0
        self.used = 0

    @contextmanager
    def measured(self) -> Iterator[None]:
        if not self.on_gpu:
            with LiveBytes() as live:
                yield
            self.allocated, self.used = self.static + live.peak, 0
            return
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
        yield
        torch.cuda.synchronize(self.device)
        free, total = torch.cuda.mem_get_info(self.device)
        self.allocated, self.used = torch.cuda.max_memory_allocated(self.device), total - free


class Bench:
    """One loaded model with adapters, a trainer and published sets."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        self.config = config
        self.facts: ModelFacts = facts_of(config.model.name)
        device = own_device(config.model.device)
        adapter = load_source(resolve(config.model.name), config.model, device).adapter
        assert isinstance(adapter, PipelineAdapter)
        self.adapter = adapter
        self.peaks = Peaks(device)
        self._write_embedding(folder)
        self.trainer: Trainer | None = Trainer(adapter, config.train, config.algorithm, config.seed)
        self.resident = Resident(adapter.transformer, self.facts.digest, SETS_HELD)
        for version in range(1, SETS_HELD + 1):
            theta = own_copy({name: p.data for name, p in self.trainer.sets.theta.items()})
            self.resident.adopt(WeightsId(Version(version), Policy.BEHAVIOUR), theta)

    def _write_embedding(self, folder: Path) -> None:
        """One prompt with a random conditioning, as the text encoder's process writes it."""
        embeddings = EmbeddingFolder.of(folder, self.facts, self.config.model)
        width = int(self.adapter.transformer.config.joint_attention_dim)  # type: ignore[union-attr, arg-type]
        drawn = torch.Generator().manual_seed(0)
        write_conditioning(embeddings.file(PROMPT.text), Conditioning(torch.randn(TOKENS, width, generator=drawn)))
        self.adapter.read_embeddings(embeddings)

    def workload(self, edge: int) -> Workload:
        work = self.config.workload(self.facts, PROMPT.text)
        width = self.adapter.bucket_width(TOKENS)
        # Only what the benchmark does: no previews, and a fixed number of rows.
        rollouts = replace(work.rollouts, size=Size(edge, edge), text_tokens=width, previews=False)
        return replace(work, rollouts=rollouts, searches=False)

    def train(self, edge: int, rows: int, recomputes: bool) -> MemoryPlan:
        """Two forwards and backwards, and the step of the optimizer, twice; the plan of the same."""
        assert self.trainer is not None
        transformer: Any = self.adapter.transformer
        transformer.disable_gradient_checkpointing()
        work = self.workload(edge)
        recomputed = work.blocks if recomputes else 0
        recompute_first(transformer, recomputed)
        self.trainer.train_config = self.config.train.model_copy(update={"micro_batch": rows})
        self.peaks.static = self._bytes()
        with self.peaks.measured():
            experience = self._experience(edge, 2 * rows)
            for _ in range(2):
                self.trainer.update(experience, range(2 * rows))
            self.trainer.optimizer.zero_grad(set_to_none=True)
        return _training_only(work, training_plan(work, TrainingChoice(rows=rows, recomputed=recomputed)))

    def roll_out(self, edge: int, rows: int) -> MemoryPlan:
        """Samples of the newest set, while the images of the last ones are decoded; the plan of the same."""
        self.trainer = None
        engine = Engine(self.adapter, self.resident, self.config.seed, rows, padded=False)
        self.peaks.static = self._bytes()
        with self.peaks.measured():
            finished = self._finish(engine, edge, range(rows))
            if self.peaks.on_gpu:
                with ThreadPoolExecutor(1) as sender:
                    decoded = sender.submit(decode_images, self.adapter, finished)
                    self._finish(engine, edge, range(rows, 2 * rows))
                    decoded.result()
            else:
                decode_images(self.adapter, finished)
        return rollout_plan(self.workload(edge), rows)

    def _finish(self, engine: Engine, edge: int, seeds: range) -> list[Finished]:
        for sample in self._samples(edge, seeds, SETS_HELD):
            engine.admit(Request(work=Work.ROLLOUT, iteration=SETS_HELD, group=0, sample=sample), PROMPT, attempt=1)
        done: list[Finished] = []
        while engine.free_rows < engine.rows:
            done += engine.step().finished
        return done

    def _samples(self, edge: int, seeds: range, version: int) -> tuple[Sample, ...]:
        sampling = Sampling(steps=STEPS, size=Size(edge, edge))
        return tuple(Sample(prompt=PROMPT.id, seed=seed, sampling=sampling, version=Version(version)) for seed in seeds)

    def _experience(self, edge: int, rows: int) -> Experience:
        device = self.adapter.device
        shape = self.adapter.latent_shape(Size(edge, edge))
        none = torch.zeros(rows, 0, *shape, device=device)
        # One timestep per sample, so that an update has two forwards.
        rollout = Rollout(
            samples=self._samples(edge, range(rows), 0),
            x0_BSC=torch.randn(rows, *shape, device=device),
            path_BKSC=none,
            log_prob_BK=none[:, :, 0, 0],
            mean_BKSC=none,
        )
        return Experience(
            rollout=rollout,
            cond=self.adapter.collate(self.adapter.encode([PROMPT]) * rows),
            uncond=None,
            advantage_B=torch.linspace(-1, 1, rows, device=device),
            kept_B=torch.ones(rows, dtype=torch.bool, device=device),
            iteration=0,
        )

    def _bytes(self) -> int:
        """Bytes of all weights and of the optimizer's state."""
        tensors = [*self.adapter.transformer.parameters(), *self.adapter._vae.parameters()]
        found = sum(tensor.nbytes for tensor in tensors)
        found += sum(t.nbytes for held, _ in self.resident.held() for t in self.resident.tensors(held).values())
        if self.trainer is not None:
            sets = self.trainer.sets
            found += sum(tensor.nbytes for name in sets.names for tensor in sets[name].values())
            states = self.trainer.optimizer.state.values()
            found += sum(t.nbytes for state in states for t in state.values() if torch.is_tensor(t))
        return found


def _training_only(work: Workload, plan: MemoryPlan) -> MemoryPlan:
    """On a CPU the benchmark holds the published sets itself, and not in a node's store."""
    if work.on_gpu:
        return plan
    return replace(plan, lines=(*plan.lines, MemoryLine("published sets", SETS_HELD * work.trained_bytes)))


def measure(tiny: bool) -> tuple[dict[str, Figure], dict[str, Any]]:
    """Figures predicted / measured, and the lines and bytes of each case."""
    config = load_config(RECIPE, [*(TINY if tiny else FULL), "algorithm.timesteps_per_sample=1"])
    train_edge, rollout_edge = EDGES[tiny]
    figures: dict[str, Figure] = {}
    details: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="memory-") as folder:
        bench = Bench(config, Path(folder))
        for rows, recomputes in TRAINED:
            name = f"memory_train_512_b{rows}" + ("" if recomputes else "_kept")
            try:
                plan = bench.train(train_edge, rows, recomputes)
            except torch.OutOfMemoryError:
                continue
            _add(name, plan, bench.peaks, figures, details)
        plan = bench.roll_out(rollout_edge, ROLLED_OUT)
        if not bench.peaks.on_gpu:
            plan = _training_only(bench.workload(rollout_edge), plan)
        _add("memory_rollout_1280", plan, bench.peaks, figures, details)
    return figures, details


def _add(name: str, plan: MemoryPlan, peaks: Peaks, figures: dict[str, Figure], details: dict[str, Any]) -> None:
    unit = f"predicted / measured: {gib(plan.allocated)} / {gib(peaks.allocated)} GiB allocated"
    figures[name] = Figure.single(plan.allocated / peaks.allocated, unit)
    if peaks.used:
        used = f"predicted / measured: {gib(plan.total)} / {gib(peaks.used)} GiB of the device"
        figures[f"{name}_device"] = Figure.single(plan.total / peaks.used, used)
    lines = {line.name: line.bytes for line in plan.lines}
    details[name] = {"predicted": plan.allocated, "measured": peaks.allocated, "used": peaks.used, "lines": lines}
    print(f"{name}: {msgspec.json.encode(details[name]).decode()}", flush=True)
