"""What fits, before a run starts: refusals with the missing amount and a way out, and the division of devices."""

import json
import re

import msgspec
import pytest
from command_line import spotlight
from fake_gpus import GIB, fake_gpus

from spotlight.compute.memory.memory_plan import CONTEXT
from spotlight.config import load_config
from spotlight.core import host_memory
from spotlight.core.errors import EnvironmentProblem
from spotlight.node.launch import SlotDevice, spare_device
from spotlight.pools.devices import DeviceTable
from spotlight.preflight import PlannedRun, memory_of, preflight
from spotlight.preflight.memory_check import check_memory
from spotlight.run import devices_of

REAL = ("model.name=random:qwen-image", "model.device=cuda", "reward.name=jpeg", "cluster.rows=4")


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.chdir(tmp_path)


def planned(*settings: str, recipe: str = "qwen-image-ocr-512") -> PlannedRun:
    return PlannedRun.new(load_config(recipe, [*REAL, *settings]), recipe)


def plan_on(subject: PlannedRun, gpus: int, free: float, total: float = 140.0):
    with fake_gpus(gpus, free=free, total=total):
        return memory_of(subject, devices_of(subject.config))


def refusal(*settings: str, gpus: int = 2, free: float = 40.0, total: float = 80.0) -> str:
    with pytest.raises(EnvironmentProblem) as refused:
        check_memory(plan_on(planned(*settings), gpus, free, total))
    return str(refused.value)


def test_rank_that_does_not_fit_is_refused_with_the_exact_missing_amount():
    subject = planned("train.micro_batch=4", "train.gradient_checkpointing=false")
    needed = plan_on(subject, 2, 139.0).limits.plan.total
    free = 90.0
    sentence = refusal("train.micro_batch=4", "train.gradient_checkpointing=false", free=free, total=96.0)
    assert sentence.startswith("the training rank reserved-1 on cuda:0 (Fake) needs ")
    assert "but 90.0 of 96.0 GiB are free there" in sentence
    # An offloaded VAE is what `auto` counts where the rank does not fit.
    missing = float(re.search(r"so ([\d.]+) GiB are missing", sentence)[1])
    assert missing == pytest.approx(needed / GIB - free, abs=0.6)
    assert "it would fit with train.gradient_checkpointing=true (" in sentence
    assert "train.micro_batch=2 (" in sentence


def test_setting_that_the_refusal_proposes_is_accepted():
    given = ("train.micro_batch=4", "train.gradient_checkpointing=false")
    sentence = refusal(*given, free=90.0)
    options = set(re.findall(r"train\.\w+=\w+", sentence)) - {"train.parallel=sharded"}
    assert options
    for option in options:
        check_memory(plan_on(planned(*given, option), 2, 90.0))


def test_full_fine_tuning_is_told_to_train_adapters_or_to_shard():
    sentence = refusal("train.lora=null", "model.dtype=float32", "train.micro_batch=1", gpus=2, free=139.0, total=140.0)
    assert "it would fit with train.lora.rank=32 and model.dtype=bfloat16 (" in sentence
    assert re.search(r"train.parallel=sharded with pipeline.tag=false over \d+ ranks", sentence)


def test_base_that_no_rank_can_hold_alone_is_shared_where_ranks_only_train():
    full = ("train.lora=null", "model.name=random:sd3", "model.dtype=float32", "train.micro_batch=1")
    ranks = ("cluster.slots=4", "cluster.gang=4", "cluster.reserved=1", "cluster.spot=1")
    settings = (*full, *ranks, "train.gradient_checkpointing=true")
    shared = plan_on(planned(*settings, "pipeline.tag=false"), 8, 70.0)
    assert (shared.config.train.parallel.value, shared.config.shards) == ("sharded", 4)
    assert not shared.problem
    assert "base shared by 4 ranks" in shared.sentences()[1]
    two = ("cluster.slots=2", "cluster.gang=2", "cluster.spot=1", "pipeline.tag=false", "train.micro_batch=1")
    small = plan_on(planned(*two), 4, 139.0)
    assert small.config.train.parallel.value == "replicated"


def test_device_that_no_setting_fits_is_refused_as_too_small():
    assert "no setting makes it fit; use a larger device" in refusal("cluster.spot=0", gpus=1, free=3.0, total=4.0)


def test_text_encoder_that_does_not_fit_is_refused_though_all_workers_do():
    settings = ("model.name=random:sd3", "train.micro_batch=1", "cluster.spot=0", "train.lora.rank=2")
    fits = plan_on(planned(*settings), 1, 24.0)
    assert not fits.problem
    free = (fits.limits.plan.total / GIB + fits.encoder.total / GIB) / 2
    assert fits.limits.plan.total < free * GIB < fits.encoder.total
    found = plan_on(planned(*settings), 1, free)
    assert "the process of the text encoder on cuda:0 (Fake) needs" in found.problem


def test_processes_that_share_a_device_are_counted_together():
    shared = ("cluster.share_devices=true", "cluster.spot=2")
    sentence = refusal(*shared, gpus=1, free=100.0, total=140.0)
    assert "the run's 3 processes on cuda:0 (Fake) need " in sentence
    assert re.search(r"\(reserved-1 [\d.]+, spot-1 [\d.]+, spot-2 [\d.]+\)", sentence)
    assert "more devices or fewer nodes" in sentence


def test_shared_device_is_divided_by_need_and_the_trainer_gets_twice_the_rest():
    found = plan_on(planned("cluster.share_devices=true"), 1, 139.0)
    parts = {node: slot.memory for (node, _), slot in found.table.slots.items()}
    alone = plan_on(planned("cluster.spot=0"), 1, 139.0).table.slots["reserved-1", 0].memory
    assert parts["spot-1"] < parts["reserved-1"] < alone <= 139 * GIB
    assert sum(parts.values()) == pytest.approx(0.97 * 139 * GIB - 2 * CONTEXT, abs=2)
    assert found.limits.plan.total <= parts["reserved-1"]


def test_devices_of_the_preflight_carry_the_memory_to_the_workers():
    with fake_gpus(2, free=139.0):
        subject = planned()
        devices = memory_of(subject, devices_of(subject.config)).table
    for slot in devices.slots.values():
        again = msgspec.json.decode(msgspec.json.encode(slot), type=type(slot))
        assert again.memory == slot.memory == int(0.97 * 139 * GIB - CONTEXT)


def test_spare_process_has_a_context_only_if_all_workers_fit_beside_it():
    missing = float(re.search(r"so ([\d.]+) GiB are missing", refusal(free=10.0))[1])
    for free, has_spare in ((139.0, True), (10.1 + missing, False)):
        found = plan_on(planned(), 2, free)
        assert not found.problem
        assert found.table.slots["reserved-1", 0].has_spare is has_spare


def test_spare_process_of_a_node_with_several_devices_opens_none():
    found = plan_on(planned("cluster.slots=2", "cluster.spot=0"), 2, 139.0).table
    devices = list(found.slots.values())
    assert [slot.memory for slot in devices] == 2 * [int(0.97 * 139 * GIB)]
    assert spare_device(devices) == ""
    assert spare_device(devices[:1]) == "cuda:0"
    assert spare_device([SlotDevice()]) == "", "a CPU has no context"


@pytest.mark.parametrize("setting", ["auto", "true"])
def test_start_says_what_a_rank_takes_and_what_was_chosen(setting):
    found = plan_on(planned(f"train.gradient_checkpointing={setting}"), 2, 139.0)
    first, second = found.sentences()
    assert re.match(
        r"memory: training rank \d+\.\d GiB \(base weights 38\.1.*\); rollout worker \d+\.\d GiB; text", first
    )
    blocks = {"auto": 0, "true": 60}[setting]
    assert re.match(
        rf"memory: micro-batch searched from 4 to \d+, {blocks} of 60 blocks recomputed, VAE in device", second
    )


def test_run_on_a_cpu_only_warns_with_the_missing_amount(monkeypatch, tmp_path):
    subject = planned("model.device=cpu", "model.name=random-tiny:qwen-image", "data.size=64x64")
    meminfo = tmp_path / "meminfo"
    monkeypatch.setattr(host_memory, "MEMINFO", meminfo)
    meminfo.write_text("MemTotal:  9000000 kB\nMemFree: 1 kB\nMemAvailable:  8000000 kB\n")
    assert host_memory.host_memory() == (8_000_000 * 1024, 9_000_000 * 1024)
    enough = memory_of(subject, DeviceTable())
    assert check_memory(enough) == ""
    needed = enough.limits.plan.total + enough.rollout.total
    meminfo.write_text(f"MemTotal:  9000000 kB\nMemAvailable:  {(needed - 2**30 // 2) // 1024} kB\n")
    warning = check_memory(memory_of(subject, DeviceTable()))
    assert "the run's 2 processes need about" in warning
    assert "so 0.50 GiB are missing" in warning
    meminfo.unlink()
    assert check_memory(memory_of(subject, DeviceTable())) == ""


def test_dry_run_prints_the_plan_as_a_table_beside_the_settings():
    outcome = spotlight("train", "words-nft", "--reward.name", "jpeg", "--dry-run")
    assert outcome.code == 0, outcome.err
    json.loads(outcome.out)
    lines = [line.split() for line in outcome.err.splitlines()]
    assert ["GiB", "training", "rank", "rollout", "worker"] in lines
    assert any(line[:2] == ["base", "weights"] for line in lines)
    assert any(line[:1] == ["total"] and float(line[1]) > float(line[2]) for line in lines)


def test_run_that_does_not_fit_ends_with_code_3_and_writes_nothing(tmp_path):
    settings = [option for setting in REAL for option in ("--set", setting)]
    with fake_gpus(2, free=30.0, total=32.0):
        for mode in ([], ["--dry-run"]):
            outcome = spotlight("train", "qwen-image-ocr-512", *settings, *mode)
            assert outcome.code == 3
            assert "GiB are missing" in outcome.err.strip().splitlines()[-1]
    assert not list(tmp_path.iterdir())


def test_paced_run_computes_nothing_and_has_no_plan():
    said: list[str] = []
    preflight(PlannedRun.new(load_config("words-nft", ["cluster.pace=cpu-words"]), "words-nft"), said.append)
    assert not [line for line in said if line.startswith("memory")]
