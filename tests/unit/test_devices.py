"""The device of every slot: one each, sharing where it is set, and clear refusals."""

import msgspec
import pytest
from command_line import spotlight
from fake_gpus import GIB, fake_gpus
from recipe_groups import REAL_RECIPES

from spotlight.config import load_config, recipe_names
from spotlight.core.errors import ConfigError, EnvironmentProblem
from spotlight.core.node_spec import NodeSpec
from spotlight.core.work import SlotClass
from spotlight.pools.config import ClusterConfig
from spotlight.pools.devices import assign, gpu_models, own_devices, probe
from spotlight.run import devices_of


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def table(gpus: int, device: str = "cuda", stand_ins: bool = False, **cluster: object):
    """Node and slot of every process, by device number."""
    with fake_gpus(gpus):
        found = probe(device)
    given = assign(ClusterConfig.model_validate(cluster), found, device, stand_ins)
    return {place: int(slot.name.removeprefix("cuda:")) for place, slot in given.slots.items()}


def test_one_reserved_and_seven_spot_nodes_on_eight_gpus_take_one_each():
    spot = {(f"spot-{number}", 0): number for number in range(1, 8)}
    assert table(8, reserved=1, spot=7) == {("reserved-1", 0): 0} | spot


def test_slots_of_a_node_have_a_device_each_in_their_order():
    assert table(4, reserved=1, spot=1, slots=2) == {
        ("reserved-1", 0): 0, ("reserved-1", 1): 1, ("spot-1", 0): 2, ("spot-1", 1): 3
    }  # fmt: skip


def test_devices_that_are_not_visible_are_not_used(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,2")
    with fake_gpus(8, numbered=True):
        found = probe("cuda")
    assert [(each.name, each.model) for each in found.devices] == [("cuda:0", "Fake 5"), ("cuda:1", "Fake 2")]
    with pytest.raises(ConfigError, match=r"finds 2 CUDA devices \(CUDA_VISIBLE_DEVICES is '5,2'\)"):
        assign(ClusterConfig(spot=2), found)


def test_more_slots_than_devices_are_refused_unless_sharing_is_set():
    with pytest.raises(ConfigError) as refused:
        table(2, reserved=1, spot=2)
    assert "the run has 3 slots (reserved-1, spot-1, spot-2) but torch finds 2 CUDA devices" in str(refused.value)
    assert "set cluster.share_devices=true" in str(refused.value)
    assert table(2, reserved=1, spot=1) == {("reserved-1", 0): 0, ("spot-1", 0): 1}
    # The device of the trainer is shared last.
    shared = table(2, reserved=1, spot=2, share_devices=True)
    assert shared == {("reserved-1", 0): 0, ("spot-1", 0): 1, ("spot-2", 0): 1}


def test_stand_ins_need_devices_of_their_own_where_the_market_may_rent_them():
    cluster = {"reserved": 1, "spot": 3}
    assert set(table(4, **cluster)) == set(table(8, **cluster))
    assert table(7, stand_ins=True, **cluster)["stand-in-3", 0] == 6
    with pytest.raises(ConfigError, match="the run has 7 slots"):
        table(4, stand_ins=True, **cluster)
    shared = table(4, stand_ins=True, share_devices=True, **cluster)
    assert [shared[f"stand-in-{number}", 0] for number in (1, 2, 3)] == [1, 2, 3]


def test_named_device_takes_all_slots_and_counts_as_shared():
    with pytest.raises(ConfigError, match=r"model.device is cuda:1 but the run has 3 slots .*share_devices=true"):
        table(2, "cuda:1", reserved=1, spot=2)
    assert set(table(2, "cuda:1", reserved=1, spot=2, share_devices=True).values()) == {1}
    assert table(2, "cuda:1", reserved=1, spot=0) == {("reserved-1", 0): 1}
    with fake_gpus(2), pytest.raises(EnvironmentProblem, match=r"model\.device is cuda:2, but torch .* finds 2 CUDA"):
        probe("cuda:2")


def test_launch_has_the_count_of_processes_that_share_the_device():
    with fake_gpus(2):
        found = probe("cuda")
    given = assign(ClusterConfig(reserved=1, spot=2, share_devices=True), found)
    assert {place: slot.processes for place, slot in given.slots.items()} == {
        ("reserved-1", 0): 1, ("spot-1", 0): 2, ("spot-2", 0): 2
    }  # fmt: skip


def test_slots_on_the_cpu_share_it_without_a_remark():
    assert devices_of(load_config("words-nft")).slots == {}
    assert str(devices_of(load_config("words-nft"))) == "devices: cpu"


def test_paced_run_computes_nothing_and_needs_no_device():
    assert devices_of(load_config("words-large-nft", ["cluster.pace=h200-qwen-image-512"])).slots == {}


ONE_GPU = [name for name in sorted({*recipe_names()} - REAL_RECIPES.keys()) if load_config(name).model.device == "cuda"]


def test_table_names_every_device_with_its_slots():
    with fake_gpus(3):
        found = probe("cuda")
    each = assign(ClusterConfig(reserved=1, spot=2), found)
    assert str(each) == "devices: cuda:0 reserved-1, cuda:1 spot-1, cuda:2 spot-2 (Fake)"
    several = assign(ClusterConfig(reserved=1, spot=1, slots=2, share_devices=True), found)
    assert "cuda:0 reserved-1/0, cuda:1 reserved-1/1 spot-1/1, cuda:2 spot-1/0" in str(several)


@pytest.mark.parametrize("recipe", ONE_GPU)
def test_shipped_recipe_for_one_gpu_runs_on_one(recipe):
    with fake_gpus(1):
        assert {slot.name for slot in devices_of(load_config(recipe)).slots.values()} == {"cuda:0"}


def test_unknown_device_name_is_refused_by_the_settings(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for word, meant in (("gpu", "cuda"), ("CPU", "cpu"), ("cuda:x", "cuda"), ("cpu:1", "cpu")):
        for options in ((), ("--dry-run",)):
            outcome = spotlight("train", "words-nft", "--model.device", word, *options)
            assert outcome.code == 2
            assert f"model.device is '{word}'" in outcome.err
            assert f"did you mean '{meant}'?" in outcome.err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        ({"count": 0, "cuda": None}, "torch 2.99.0+fake is a build without CUDA"),
        ({"count": 0}, "torch 2.99.0+fake finds no CUDA devices"),
        ({"count": 0, "warning": "The NVIDIA driver is too old."}, "(The NVIDIA driver is too old.)"),
    ],
)
def test_missing_gpu_is_an_environment_error_and_nothing_is_written(tmp_path, monkeypatch, build, sentence):
    monkeypatch.chdir(tmp_path)
    with fake_gpus(**build):
        outcome = spotlight("train", "words-large-nft")
    assert outcome.code == 3
    assert sentence in outcome.err
    assert "set model.device=cpu" in outcome.err
    assert not list(tmp_path.iterdir())


def test_probe_that_fails_reports_torchs_own_reason():
    with fake_gpus(1, broken="all CUDA-capable devices are busy"), pytest.raises(EnvironmentProblem) as refused:
        probe("cuda")
    assert "torch's devices cannot be listed (RuntimeError: all CUDA-capable devices are busy)" in str(refused.value)


def test_slots_of_a_machine_that_joins_have_a_device_each_and_share_one_only_where_the_run_does():
    spec = NodeSpec(name="box", slot_class=SlotClass.SPOT, slots=2)
    with fake_gpus(2, free=100.0):
        own = own_devices(spec, "cuda", shares=False)
        assert [(slot.name, slot.processes) for slot in own] == [("cuda:0", 1), ("cuda:1", 1)]
        assert 90 * GIB < own[0].memory < 100 * GIB
        third = msgspec.structs.replace(spec, slots=3)
        with pytest.raises(EnvironmentProblem, match=r"box has 3 slots but torch finds 2 CUDA devices.*fewer --slots"):
            own_devices(third, "cuda", shares=False)
        shared = own_devices(third, "cuda", shares=True)
        assert [(slot.name, slot.processes) for slot in shared] == [("cuda:0", 2), ("cuda:1", 1), ("cuda:0", 2)]
        assert shared[0].memory == own[0].memory // 2
        assert {slot.name for slot in own_devices(spec, "cpu", shares=False)} == {"cpu"}


def test_models_of_gpus_are_listed_for_the_run_and_none_where_torch_cannot_be_asked():
    with fake_gpus(2, numbered=True):
        assert gpu_models() == ("Fake 0", "Fake 1")
    with fake_gpus(2, broken="no driver"):
        assert gpu_models() == ()
