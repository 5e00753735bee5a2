"""Every setting of a recipe changes something that can be observed: a setting that nothing reads fails here.

One line per key of `RunConfig`: what is observed, another value of the key, and the settings under which it matters.
"""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pytest
import setting_observers as see
from pydantic import BaseModel
from ray_observer import ray_placed
from setting_observers import Observer, crews, deadlines, devices, gang_after_a_loss, journal, launch, trained, written
from tracker_observer import tracked

from spotlight.config import RunConfig, load_config

SMALL = (
    "iterations=2", "rollout.prompts=4", "rollout.group_size=4", "rollout.steps=6", "eval.every=2", "eval.prompts=4",
    "eval.steps=3", "explore.seeds=8", "explore.steps=3", "cluster.rows=4", "cluster.heartbeat_s=1",
    "train.micro_batch=4", "output.checkpoint_every=1", "output.journal.sync=never",
)  # fmt: skip
SDE = ("rollout.sampler=flow_sde", "rollout.noise_level=0.7", "rollout.window_size=2", "rollout.window_range=[0,4]")
FLOW = ("algorithm.kind=flow_grpo", *SDE)
STALE = (*FLOW, "pipeline.asynchrony=true", "algorithm.clip=0.2")
BANDIT = ("explore.plan=bandit", "iterations=6")
INLINE = ("explore.timing=inline",)
CANDIDATES = ("explore.candidates=2",)
WHOLE = ("explore.steps=6",)
GAP = ("pipeline.gap=true", "rollout.prompts=8")
AHEAD = ("pipeline.asynchrony=true", "rollout.prompts=8", "iterations=3")
MARKET = ("market.trace={folder}/market.csv",)
NOTICE_FILE = ("cluster.notices.sources=file:{folder}/mine.txt",)
CREWS = ("cluster.slots=4", "cluster.elastic.speed_ups=[[24,2,1.8],[24,3,2.5],[24,4,3.2]]")
REAL = (
    "model.name=random:sd3", "reward.name=jpeg", "data.prompts={folder}/mine.txt", "data.held_out={folder}/mine.txt",
    "train.lora.rank=2", "cluster.elastic.degrees=[1]",
)  # fmt: skip
LORA = ("train.lora.rank=2",)
OWN = ("reward.name=setting_rewards:bright",)
RAY = ("cluster.pool=ray",)
PACED = ("cluster.pace=cpu-words",)
CUDA = ("model.device=cuda",)
SYNCED = ("output.journal.sync=interval",)
TERM = ("reward.terms=[{name: ocr}]",)
TERMS = ("reward.terms=[{name: jpeg}, {name: ocr}]",)

TRACE = """time_s,node,event,seconds
0,spot-1,up,0
0,spot-2,up,0
42,spot-2,kill,0
45,spot-2,up,0
57,spot-1,notice,2
59,spot-1,kill,0
70,spot-1,up,0
"""
REWARD = """
def bright(images, prompts, *, level=1.0):
    return [level for _ in images]
"""
MAY_REFUSE = (devices, see.run_check, see.reward_code)


class Change(NamedTuple):
    """Where a key matters."""

    observer: Observer
    value: Any
    given: tuple[str, ...] = ()


CHANGES = {
    "seed": Change(journal, 1),
    "iterations": Change(journal, 3),
    "deterministic": Change(journal, True),
    "model.name": Change(journal, "scenes"),
    "model.device": Change(devices, "cuda"),
    "model.dtype": Change(see.encoded, "bfloat16", REAL),
    "model.max_text_tokens": Change(see.encoded, 64, REAL),
    "model.embeddings_gb": Change(see.encoded, 0.01, (*REAL, "iterations=8")),
    "model.offload_vae": Change(see.fitted, True, (*REAL, *CUDA, "cluster.spot=1")),
    "model.tf32": Change(see.precision, True),
    "model.compile": Change(see.accelerated, True),
    "model.attention": Change(see.accelerated, "flash", ("model.compile=true",)),
    "data.prompts": Change(journal, "test"),
    "data.size": Change(journal, "256x256", REAL),
    "data.held_out": Change(journal, "train"),
    "reward.name": Change(launch, "jpeg"),
    "reward.options": Change(see.reward_code, {"level": 2}, (*OWN, "reward.folder={folder}")),
    "reward.terms.name": Change(launch, "jpeg", TERM),
    "reward.terms.weight": Change(launch, 2, TERM),
    "reward.terms.options": Change(launch, {"level": 2}, TERM),
    "reward.terms.processes": Change(launch, 3, TERM),
    "reward.terms.timeout_s": Change(launch, 7, TERM),
    "reward.terms.device": Change(launch, "cuda", TERM),
    "reward.terms.batch": Change(launch, 4, TERM),
    "reward.combine": Change(journal, "gdpo", TERMS),
    "reward.folder": Change(see.reward_code, "{folder}", OWN),
    "reward.judge": Change(see.judged, "jpeg"),
    "reward.processes": Change(launch, 3),
    "reward.timeout_s": Change(launch, 7),
    "algorithm.kind": Change(journal, "flow_grpo", SDE),
    "algorithm.beta": Change(trained, 0.5),
    "algorithm.advantage_clip": Change(trained, 0.2),
    "algorithm.kl_weight": Change(trained, 0.5),
    "algorithm.timesteps_per_sample": Change(trained, 3),
    "algorithm.old_decay": Change(trained, 0.5),
    "algorithm.advantage.std": Change(journal, "group"),
    "algorithm.advantage.eps": Change(journal, 0.1),
    "algorithm.old_log_prob": Change(trained, "recomputed", FLOW),
    "algorithm.clip": Change(trained, 0.00001, FLOW),
    "algorithm.kl_divides_by_dt": Change(trained, True, (*FLOW, "algorithm.kl_weight=0.1")),
    "algorithm.ratio_normalisation": Change(trained, True, FLOW),
    "algorithm.stale_weight_cap": Change(trained, 1, STALE),
    "rollout.prompts": Change(journal, 5),
    "rollout.group_size": Change(journal, 5),
    "rollout.steps": Change(journal, 7),
    "rollout.sampler": Change(journal, "cps", SDE),
    "rollout.noise_level": Change(journal, 0.5, SDE),
    "rollout.window_size": Change(journal, 1, SDE),
    "rollout.window_range": Change(journal, [2, 5], SDE),
    "rollout.guidance": Change(journal, 2),
    "rollout.initial_noise": Change(journal, "shared", ("explore.enabled=off",)),
    "train.lr": Change(trained, 0.01),
    "train.weight_decay": Change(trained, 0.5),
    "train.betas": Change(trained, [0.5, 0.9]),
    "train.optimizer_eps": Change(trained, 0.01),
    "train.max_grad_norm": Change(trained, 0.0001),
    "train.micro_batch": Change(trained, 8),
    "train.batches_over": Change(trained, "samples", ("train.micro_batch=8",)),
    "train.updates_per_iteration": Change(journal, 1),
    "train.ema_decay": Change(trained, 0.1),
    "train.ema_warmup": Change(trained, False),
    "train.lora.rank": Change(trained, 4, LORA),
    "train.lora.alpha": Change(trained, 1, LORA),
    "train.gradient_checkpointing": Change(trained, True),
    "train.parallel": Change(see.shared_model, "sharded", ("pipeline.tag=false",)),
    "train.sequence_ranks": Change(see.shared_model, 2, ("cluster.slots=2", "cluster.gang=2")),
    "train.timeout_s": Change(journal, 0.01),
    "eval.every": Change(journal, 1),
    "eval.prompts": Change(journal, 5),
    "eval.steps": Change(journal, 4),
    "eval.guidance": Change(journal, 2),
    "eval.judge_every": Change(see.judged, 2, ("iterations=9",)),
    "explore.enabled": Change(journal, "off"),
    "explore.plan": Change(journal, "bandit"),
    "explore.seeds": Change(journal, 6),
    "explore.most_seeds": Change(journal, 6, BANDIT),
    "explore.steps": Change(journal, 4),
    "explore.candidates": Change(journal, 2),
    "explore.scouts": Change(journal, 5, CANDIDATES),
    "explore.arms": Change(journal, [3], BANDIT),
    "explore.alpha": Change(journal, 5, BANDIT),
    "explore.discount": Change(journal, 0.1, BANDIT),
    "explore.audit_share": Change(journal, 0.9),
    "explore.baseline": Change(journal, "audited", ("explore.audit_share=0.9",)),
    "explore.solver": Change(journal, "ode2"),
    "explore.precision": Change(see.accelerated, "fp8", ("model.compile=true", "train.lora.rank=4")),
    "explore.noise": Change(journal, "path", (*WHOLE, *SDE)),
    "explore.timing": Change(journal, "inline"),
    "explore.overrun": Change(journal, 1, ("explore.seeds=64",)),
    "explore.margin": Change(journal, 0.5, BANDIT),
    "pipeline.gap": Change(journal, True),
    "pipeline.tag": Change(journal, False),
    "pipeline.least_groups": Change(journal, 2, GAP),
    "pipeline.asynchrony": Change(journal, True),
    "pipeline.stale_share": Change(journal, 0.25, AHEAD),
    "pipeline.switch_s": Change(journal, 100, GAP),
    "cluster.reserved": Change(journal, 2),
    "cluster.gang": Change(journal, 2, ("cluster.reserved=2",)),
    "cluster.gang_elastic": Change(gang_after_a_loss, True, ("cluster.gang=2", "cluster.slots=2")),
    "cluster.gang_port": Change(launch, 29500),
    "cluster.spot": Change(journal, 3),
    "cluster.address": Change(ray_placed, "10.0.0.1:6379", RAY),
    "cluster.ray_spot_label": Change(ray_placed, "old", RAY),
    "cluster.ray_reserved_label": Change(ray_placed, "tier=kept", RAY),
    "cluster.spot_speed": Change(journal, 0.5),
    "cluster.slots": Change(journal, 2),
    "cluster.pool": Change(devices, "join", (*CUDA, "cluster.listen=127.0.0.1:0")),
    "cluster.listen": Change(see.announced, "127.0.0.1:0"),
    "cluster.share_devices": Change(devices, True, CUDA),
    "cluster.rows": Change(journal, 2),
    "cluster.threads": Change(launch, 2),
    "cluster.commit_every": Change(journal, 5, MARKET),
    "cluster.heartbeat_s": Change(launch, 2),
    "cluster.silence_s": Change(launch, 20),
    "cluster.grace_s": Change(launch, 30),
    "cluster.start_s": Change(launch, 20),
    "cluster.drain_s": Change(launch, 7),
    "cluster.store": Change(launch, "{folder}/store"),
    "cluster.pace": Change(launch, "cpu-words"),
    "cluster.pace_speed": Change(launch, 2, PACED),
    "cluster.notices.sources": Change(see.notices, "[sigterm]"),
    "cluster.notices.grace_s": Change(see.notices, 7, NOTICE_FILE),
    "cluster.notices.poll_s": Change(see.notices, 3, NOTICE_FILE),
    "cluster.notices.metadata_url": Change(
        see.notices,
        "http://127.0.0.1:2",
        ("cluster.notices.sources=aws", "cluster.notices.metadata_url=http://127.0.0.1:1"),
    ),
    "cluster.elastic.degrees": Change(crews, [1, 2], CREWS),
    "cluster.elastic.max_degree": Change(crews, 2, CREWS),
    "cluster.elastic.transport": Change(launch, "nccl"),
    "cluster.elastic.mixed_gpus": Change(crews, "refuse", CREWS),
    "cluster.elastic.gain": Change(crews, 0.75, CREWS),
    "cluster.elastic.speed_ups": Change(crews, [[24, 2, 1.0], [24, 3, 1.0], [24, 4, 1.0]], CREWS),
    "cluster.elastic.measure": Change(crews, False, CREWS),
    "cluster.elastic.hysteresis_s": Change(crews, 1, CREWS),
    "cluster.elastic.forming_s": Change(deadlines, 7),
    "cluster.elastic.quiesce_s": Change(deadlines, 7),
    "cluster.elastic.boundary_s": Change(deadlines, 7),
    "cluster.elastic.step_floor_s": Change(deadlines, 40),
    "cluster.elastic.step_factor": Change(deadlines, 9),
    "cluster.elastic.first_step_s": Change(deadlines, 33),
    "market.trace": Change(journal, "{folder}/market.csv"),
    "market.start_h": Change(journal, 0.005, MARKET),
    "market.speed": Change(journal, 2, MARKET),
    "market.notice_s": Change(journal, 3, MARKET),
    "market.boot_s": Change(journal, 5),
    "market.fallback_s": Change(journal, 0, MARKET),
    "market.reserved_price": Change(journal, "gcp-a3-h100"),
    "market.spot_price": Change(journal, "gcp-a3-h100"),
    "budget.max_hours": Change(journal, 0.0001),
    "budget.max_dollars": Change(journal, 0.0001),
    "output.folder": Change(see.run_folder, "elsewhere"),
    "output.name": Change(see.run_folder, "named"),
    "output.checkpoint_every": Change(journal, 2),
    "output.trackers": Change(tracked, "[tensorboard]"),
    "output.project": Change(tracked, "mine", ("output.trackers=[trackio]",)),
    "output.journal.sync": Change(written, "always"),
    "output.journal.interval_s": Change(written, 10, SYNCED),
    "output.journal.segment_bytes": Change(written, 1024),
}


def keys(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Dotted keys of a section and the sections in it, of all alternatives where there are several."""
    for name, field in model.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        sections = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        for section in sections:
            yield from keys(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}"


def test_every_key_of_the_configuration_has_a_line_and_every_line_a_key():
    found = set(keys(RunConfig))
    assert sorted(found - CHANGES.keys()) == [], "keys without a line in CHANGES"
    assert sorted(CHANGES.keys() - found) == [], "lines of keys that do not exist"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a market, and a reward that can be imported only from there."""
    here = tmp_path_factory.mktemp("settings")
    (here / "market.csv").write_text(TRACE)
    (here / "mine.txt").write_text("".join(f"{number} red boats on a lake\n" for number in range(40)))
    (here / "setting_rewards.py").write_text(REWARD)
    return here


@cache
def observed(observer: Observer, settings: tuple[str, ...], folder: Path) -> object:
    return see.observed(observer, configured(settings, folder), folder / "run")


def configured(settings: tuple[str, ...], folder: Path) -> RunConfig:
    return load_config("words-nft", [each.replace("{folder}", str(folder)) for each in (*SMALL, *settings)])


def changed(key: str, value: object) -> str:
    """The override that changes the key; a key of a list's entries changes a list of one."""
    if key.startswith("reward.terms."):
        return f"reward.terms=[{ {'name': 'ocr'} | {key.rpartition('.')[2]: value} }]"
    return f"{key}={value}"


@pytest.mark.parametrize("key", CHANGES)
def test_setting_that_changes_alone_is_observed(key: str, folder: Path) -> None:
    observer, value, given = CHANGES[key]
    before, after = (observed(observer, settings, folder) for settings in (given, (*given, changed(key, value))))
    assert before != after
    assert observer in MAY_REFUSE or not any(isinstance(seen, see.Refusal) for seen in (before, after))


@pytest.mark.parametrize("observer", sorted({change.observer for change in CHANGES.values()}, key=lambda o: o.__name__))
def test_observation_of_the_same_settings_is_the_same(observer: Observer, folder: Path) -> None:
    given = next(change.given for change in CHANGES.values() if change.observer is observer)
    assert observed(observer, given, folder) == see.observed(observer, configured(given, folder), folder / "run")
