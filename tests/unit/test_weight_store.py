"""Published weights: written once per node, mapped by all workers, and never anything but what was published."""

import os
from pathlib import Path

import pytest
import torch
from engine_stories import BASE_DIGEST
from safetensors.torch import save_file
from tiny_models import RUN_SEED, tiny_adapter
from torch import nn

from spotlight.compute.train.config import LoraConfig
from spotlight.compute.train.lora import select_trainable
from spotlight.compute.weights.digest import fingerprint
from spotlight.compute.weights.resident import Resident
from spotlight.compute.weights.store import MappedWeights, NodeStore
from spotlight.core.errors import EnvironmentProblem, WeightsError
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId


def numbered(version: int, policy: Policy = Policy.BEHAVIOUR) -> WeightsId:
    return WeightsId(Version(version), policy)


def state(seed: int = 0) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return {
        "a.weight": torch.randn(8, 4, generator=draw),
        "a.bias": torch.randn(4, generator=draw),
        "b.half": torch.randn(3, generator=draw).bfloat16(),
    }


def published(folder: Path, version: int = 1, seed: int = 0) -> NodeStore:
    store = NodeStore(folder)
    store.publish(numbered(version), "tiny", state(seed), BASE_DIGEST)
    return store


# --- the store ---


def test_opened_weights_are_the_published_bits_with_their_origin(tmp_path):
    store = NodeStore(tmp_path / "node")
    stored = store.publish(numbered(3, Policy.AVERAGE), "tiny", state(), BASE_DIGEST)
    assert (stored.weights, stored.fingerprint) == (numbered(3, Policy.AVERAGE), fingerprint(state()))
    assert stored.size == stored.path.stat().st_size
    opened = NodeStore(tmp_path / "node").open(numbered(3, Policy.AVERAGE))
    assert fingerprint(opened.tensors) == opened.fingerprint == stored.fingerprint
    assert (opened.family, opened.base_digest, opened.weights) == ("tiny", BASE_DIGEST, stored.weights)


def test_publishing_the_same_again_changes_nothing(tmp_path):
    store = published(tmp_path)
    before = store.open(numbered(1))
    again = store.publish(numbered(1), "tiny", state(), BASE_DIGEST)
    assert again.fingerprint == before.fingerprint
    assert store.holds() == (numbered(1),)


def test_publishing_other_weights_under_a_taken_version_is_refused(tmp_path):
    store = published(tmp_path)
    with pytest.raises(WeightsError, match=r"behaviour-1 is in the store .* never change; publish them as another"):
        store.publish(numbered(1), "tiny", state(seed=1), BASE_DIGEST)
    assert store.open(numbered(1)).fingerprint == fingerprint(state())


def test_missing_weights_are_refused_with_the_existing_ones(tmp_path):
    store = published(tmp_path, version=4)
    with pytest.raises(WeightsError, match=r"behaviour-5 are not in the store .* holds behaviour-4; publish or fetch"):
        store.open(numbered(5))


def test_kept_versions_stay_and_others_go(tmp_path):
    store = NodeStore(tmp_path)
    for version in range(4):
        store.publish(numbered(version), "tiny", state(version), BASE_DIGEST)
    store.publish(numbered(3, Policy.AVERAGE), "tiny", state(9), BASE_DIGEST)
    store.open(numbered(1))
    assert store.keep([numbered(2), numbered(3), numbered(8)]) == (
        numbered(0),
        numbered(1),
        numbered(3, Policy.AVERAGE),
    )
    assert store.holds() == (numbered(2), numbered(3))
    assert {path.suffix for path in tmp_path.iterdir() if not path.name.startswith(".")} == {".safetensors"}
    assert store.open(numbered(3)).fingerprint == fingerprint(state(3))


def test_reader_keeps_its_weights_after_they_are_deleted(tmp_path):
    store = published(tmp_path)
    mapped = store.open(numbered(1))
    store.keep([])
    assert store.holds() == ()
    assert fingerprint(mapped.tensors) == fingerprint(state())


def test_stray_write_to_mapped_weights_reaches_neither_file_nor_other_readers(tmp_path):
    store = published(tmp_path)
    first, second = store.open(numbered(1)), store.open(numbered(1))
    first.tensors["a.weight"].fill_(7.0)
    assert fingerprint(second.tensors) == fingerprint(state())
    assert fingerprint(store.open(numbered(1)).tensors) == fingerprint(state())


def test_opened_weights_are_pages_of_the_file_and_not_a_copy(tmp_path):
    store = NodeStore(tmp_path)
    store.publish(numbered(1), "tiny", {"large": torch.ones(1 << 20)}, BASE_DIGEST)
    mapped = store.open(numbered(1))
    address = mapped.tensors["large"].data_ptr()
    ranges = [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if str(tmp_path) in line]
    bounds = [tuple(int(end, 16) for end in span.split("-")) for span in ranges]
    assert any(low <= address < high for low, high in bounds)


def test_altered_weights_are_refused_before_they_are_used(tmp_path):
    """Also where the file was good when it was loaded before."""
    module = tiny_adapter().transformer
    store = NodeStore(tmp_path)
    store.publish(numbered(1), "tiny", trained(module), BASE_DIGEST)
    resident = Resident(module, BASE_DIGEST)
    resident.load(store.open(numbered(1)))
    resident.drop(numbered(1))
    path = tmp_path / "behaviour-1.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(WeightsError, match=r"behaviour-1 was published with .* altered on the way; fetch it again"):
        resident.load(store.open(numbered(1)))
    assert not resident.holds(numbered(1))


def test_truncated_weights_are_refused(tmp_path):
    store = published(tmp_path)
    path = tmp_path / "behaviour-1.safetensors"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(WeightsError, match="truncated or not safetensors"):
        store.open(numbered(1))


def test_renamed_weights_are_refused(tmp_path):
    store = published(tmp_path)
    os.rename(tmp_path / "behaviour-1.safetensors", tmp_path / "behaviour-2.safetensors")
    with pytest.raises(WeightsError, match="holds behaviour-1 but was opened as behaviour-2"):
        store.open(numbered(2))


def test_file_that_was_not_published_is_refused(tmp_path):
    save_file(state(), tmp_path / "behaviour-1.safetensors", metadata={"format": "pt"})
    with pytest.raises(WeightsError, match="has no base_digest, family, fingerprint, policy, version"):
        NodeStore(tmp_path).open(numbered(1))


@pytest.mark.parametrize("damage", ["truncated", "altered"])
def test_publishing_again_replaces_a_damaged_file(tmp_path, damage):
    store = published(tmp_path)
    path = tmp_path / "behaviour-1.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:-10] if damage == "truncated" else data[:-1] + b"\x55")
    store.publish(numbered(1), "tiny", state(), BASE_DIGEST)
    assert fingerprint(store.open(numbered(1)).tensors) == fingerprint(state())


def test_store_without_room_raises_and_leaves_nothing(tmp_path, monkeypatch):
    def full(*_given, **_named):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spotlight.compute.weights.store.download.write", full)
    with pytest.raises(EnvironmentProblem, match=r"No space left .* free memory or disk") as refusal:
        published(tmp_path)
    assert refusal.value.exit_code == 3
    assert NodeStore(tmp_path).holds() == ()


def test_leftovers_of_a_killed_writer_are_no_version_and_are_swept(tmp_path):
    store = published(tmp_path)
    left = tmp_path / "behaviour-2.safetensors.part"
    left.write_bytes(b"half")
    assert store.holds() == (numbered(1),)
    store.keep([numbered(1)])
    assert not left.exists()


# --- resident sets ---


def lora_module(seed: int = 0) -> nn.Module:
    adapter = tiny_adapter(seed)
    select_trainable(adapter.transformer, LoraConfig(rank=2, alpha=4), adapter.lora_targets, RUN_SEED)
    return adapter.transformer


def trained(module: nn.Module, by: float = 0.5) -> dict[str, torch.Tensor]:
    return {name: p.detach() + by for name, p in module.named_parameters() if p.requires_grad}


def stored_set(folder: Path, tensors: dict[str, torch.Tensor], version: int = 1, base: str = BASE_DIGEST):
    store = NodeStore(folder)
    store.publish(numbered(version), "tiny", tensors, base)
    return store.open(numbered(version))


def held_by(module: nn.Module) -> str:
    return fingerprint({name: p.detach() for name, p in module.named_parameters() if p.requires_grad})


@pytest.mark.parametrize("build", [lambda: tiny_adapter().transformer, lora_module], ids=["full", "lora"])
def test_module_computes_with_a_loaded_set_inside_use_and_with_its_own_outside(tmp_path, build):
    module = build()
    own, resident = held_by(module), Resident(module, BASE_DIGEST)
    value = resident.load(stored_set(tmp_path, trained(module)))
    assert value == fingerprint(trained(module)) == resident.digest_of(numbered(1)) != own
    assert held_by(module) == own
    with resident.use(numbered(1)):
        assert held_by(module) == value
        assert not torch.is_grad_enabled()
    assert held_by(module) == own
    with pytest.raises(RuntimeError, match="boom"), resident.use(numbered(1)):
        raise RuntimeError("boom")
    assert held_by(module) == own


def test_set_of_a_cpu_module_is_not_copied(tmp_path):
    module = tiny_adapter().transformer
    mapped, resident = stored_set(tmp_path, trained(module)), Resident(module, BASE_DIGEST)
    resident.load(mapped)
    with resident.use(numbered(1)):
        assert {p.data_ptr() for p in module.parameters()} == {t.data_ptr() for t in mapped.tensors.values()}


def test_version_zero_is_the_base_until_training_writes_to_it(tmp_path):
    module = tiny_adapter().transformer
    resident = Resident(module, BASE_DIGEST)
    with resident.use(numbered(0)):
        pass
    assert resident.held_digest(numbered(0)) == resident.digest_of(numbered(0)) == BASE_DIGEST
    first = {name: p.detach().clone() for name, p in module.named_parameters()}
    with torch.no_grad():
        next(iter(module.parameters())).add_(1.0)
    with pytest.raises(WeightsError, match=r"1 base weights .* trained in place .* publish version 0"):
        resident.held_digest(numbered(0))
    resident.load(stored_set(tmp_path, first, version=0))
    assert resident.held_digest(numbered(0)) == fingerprint(first)


def test_adapters_over_a_base_that_was_written_to_are_refused(tmp_path):
    module = lora_module()
    resident = Resident(module, BASE_DIGEST)
    resident.load(stored_set(tmp_path, trained(module)))
    frozen = next(p for p in module.parameters() if not p.requires_grad)
    with torch.no_grad():
        frozen.add_(1.0)
    with pytest.raises(WeightsError, match="trained in place"):
        resident.held_digest(numbered(1))


def test_third_set_is_refused_until_one_is_dropped(tmp_path):
    module = tiny_adapter().transformer
    resident = Resident(module, BASE_DIGEST)
    sets = [stored_set(tmp_path, trained(module, by), version) for version, by in ((1, 0.1), (2, 0.2), (3, 0.3))]
    for loaded in sets[:2]:
        resident.load(loaded)
    resident.load(sets[1])
    with pytest.raises(WeightsError, match="behaviour-3 cannot be loaded beside behaviour-1, behaviour-2"):
        resident.load(sets[2])
    resident.drop(numbered(1))
    resident.load(sets[2])
    assert resident.held() == ((numbered(2), sets[1].fingerprint), (numbered(3), sets[2].fingerprint))
    assert not resident.holds(numbered(1))
    with pytest.raises(WeightsError, match=r"behaviour-1 cannot be used, .* holds behaviour-2, behaviour-3"):
        resident.held_digest(numbered(1))


def test_set_with_lost_lora_keys_is_refused_by_name(tmp_path):
    module = lora_module()
    tensors = trained(module)
    lost = sorted(tensors)[:6]
    mapped = stored_set(tmp_path, {name: tensor for name, tensor in tensors.items() if name not in lost})
    resident = Resident(module, BASE_DIGEST)
    with pytest.raises(WeightsError, match="6 missing") as refusal:
        resident.load(mapped)
    assert lost[0] in str(refusal.value)
    assert not resident.holds(numbered(1))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        pytest.param(lambda name, tensor: {f"{name}.x": tensor}, "1 missing .* 1 unexpected", id="renamed"),
        pytest.param(lambda name, tensor: {name: tensor, f"{name}.x": tensor.clone()}, "1 unexpected", id="surplus"),
        pytest.param(lambda name, tensor: {name: tensor[:-1]}, "1 of another shape or type", id="shape"),
        pytest.param(lambda name, tensor: {name: tensor.bfloat16()}, "1 of another shape or type", id="type"),
    ],
)
def test_set_that_does_not_fit_the_module_is_refused(tmp_path, change, problem):
    module = tiny_adapter().transformer
    tensors = trained(module)
    name = sorted(tensors)[0]
    tensors |= change(name, tensors.pop(name))
    with pytest.raises(WeightsError, match=problem) as refusal:
        Resident(module, BASE_DIGEST).load(stored_set(tmp_path, tensors))
    assert name in str(refusal.value)


def test_full_weights_for_a_lora_module_are_refused(tmp_path):
    full = tiny_adapter().transformer
    with pytest.raises(WeightsError, match=r"missing .* unexpected .* train\.lora"):
        Resident(lora_module(), BASE_DIGEST).load(stored_set(tmp_path, trained(full)))


def test_set_of_another_base_is_refused(tmp_path):
    module = lora_module()
    mapped = stored_set(tmp_path, trained(module), base="e" * 32)
    with pytest.raises(WeightsError, match=f"belongs to base weights {'e' * 32} but this worker's model has"):
        Resident(module, BASE_DIGEST).load(mapped)


def test_set_whose_digest_is_not_what_the_module_then_holds_is_refused(tmp_path):
    module = tiny_adapter().transformer
    mapped = stored_set(tmp_path, trained(module))
    altered = {name: tensor.clone() for name, tensor in mapped.tensors.items()}
    altered[sorted(altered)[0]].view(-1)[0] += 1.0
    wrong = MappedWeights(
        weights=mapped.weights,
        family=mapped.family,
        fingerprint=mapped.fingerprint,
        base_digest=mapped.base_digest,
        tensors=altered,
    )
    resident = Resident(module, BASE_DIGEST)
    with pytest.raises(WeightsError, match=f"published with digest {mapped.fingerprint} but the model holds"):
        resident.load(wrong)
    assert not resident.holds(numbered(1))
