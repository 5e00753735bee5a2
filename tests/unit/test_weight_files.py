"""Weight files and digests: bit for bit what was written, or a WeightsError."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from spotlight.compute.models import families
from spotlight.compute.models.families import SCENES, WORDS
from spotlight.compute.weights import files
from spotlight.compute.weights.digest import HOST_CHUNK, digest, fingerprint
from spotlight.core.errors import InputError, WeightsError


def weights() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "block.weight": torch.randn(4, 6, generator=generator),
        "block.bias": torch.randn(5, generator=generator).bfloat16(),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 3),
        "half": torch.randn(3, generator=generator).half(),
    }


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "deep" / "tiny.safetensors"
    files.write(made, "words", weights())
    return made


def test_file_read_back_is_what_was_written(path):
    content = files.read(path)
    assert content.family == "words"
    assert content.digest == digest(weights()) == files.write(path, "words", weights())
    assert content.weights.keys() == weights().keys()
    for name, tensor in weights().items():
        assert content.weights[name].dtype == tensor.dtype
        assert torch.equal(content.weights[name], tensor)


def test_write_leaves_one_file_and_replaces_an_older_one(path):
    files.write(path, "scenes", {"other": torch.ones(2)})
    assert [found.name for found in path.parent.iterdir()] == [path.name]
    assert files.read(path).family == "scenes"


def test_write_of_views_and_transposed_tensors_keeps_their_values(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    files.write(
        tmp_path / "w.safetensors", "words", {"t": base.T, "row": base[1], "grad": base.clone().requires_grad_()}
    )
    read = files.read(tmp_path / "w.safetensors").weights
    assert torch.equal(read["t"], base.T)
    assert torch.equal(read["row"], base[1])


@pytest.mark.parametrize("kept", [0, 1, 8, 100, -100, -1])
def test_file_cut_short_is_refused(path, kept):
    content = path.read_bytes()
    path.write_bytes(content[:kept])
    with pytest.raises(WeightsError, match="truncated or not safetensors"):
        files.read(path)


def test_file_with_any_altered_byte_of_weights_is_refused(path):
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")
    assert len(content) - header == sum(t.numel() * t.element_size() for t in weights().values())
    for place in range(header, len(content)):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(WeightsError, match="so it was altered"):
            files.read(path)


def test_file_with_any_altered_byte_of_its_header_is_refused_or_changes_no_weight(path):
    """Padding and safetensors' own format mark may change; another family is refused where the model is built."""
    content, written = path.read_bytes(), files.read(path)
    header = 8 + int.from_bytes(content[:8], "little")
    accepted = 0
    for place in range(header):
        for flipped in (1, 0x20, 0x80):
            path.write_bytes(content[:place] + bytes([content[place] ^ flipped]) + content[place + 1 :])
            try:
                read = files.read(path)
            except WeightsError:
                continue
            accepted += 1
            assert digest(read.weights) == read.digest == written.digest
            if read.family != written.family:
                with pytest.raises(InputError):
                    families.build(read)
    assert accepted < 30


def test_missing_file_is_named(tmp_path):
    with pytest.raises(WeightsError, match=r"absent\.safetensors does not exist"):
        files.read(tmp_path / "absent.safetensors")
    with pytest.raises(WeightsError, match="does not exist"):
        files.read(tmp_path)


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}, {"digest": "0" * 32}, {"family": "words"}])
def test_file_of_another_program_is_refused(tmp_path, metadata):
    save_file(weights(), tmp_path / "foreign.safetensors", metadata=metadata)
    with pytest.raises(WeightsError, match="Spotlight did not write it"):
        files.read(tmp_path / "foreign.safetensors")


def test_file_that_is_not_safetensors_is_refused(tmp_path):
    (tmp_path / "text.safetensors").write_text("hello, this is not a weights file")
    with pytest.raises(WeightsError, match="not safetensors"):
        files.read(tmp_path / "text.safetensors")


def test_family_loaded_from_its_file_has_those_weights(tmp_path):
    torch.manual_seed(0)
    state = WORDS.build().state_dict()
    files.write(tmp_path / "w.safetensors", "words", state)
    adapter = families.load(str(tmp_path / "w.safetensors"))
    assert adapter.family == "words"
    assert digest(adapter.transformer.state_dict()) == digest(state)
    assert not adapter.transformer.training


@pytest.mark.parametrize("family", ["scenes", "words-large"])
def test_weights_of_another_family_are_refused(tmp_path, family):
    """`scenes` has the same names as `words` with other shapes, `words-large` has more names."""
    files.write(tmp_path / "w.safetensors", family, WORDS.build().state_dict())
    with pytest.raises(WeightsError, match=f"do not fit {family}"):
        families.load(str(tmp_path / "w.safetensors"))


def test_weights_with_a_missing_or_unknown_key_are_refused(tmp_path):
    state = SCENES.build().state_dict()
    state["stranger"] = state.pop("proj_out.bias")
    files.write(tmp_path / "s.safetensors", "scenes", state)
    with pytest.raises(WeightsError, match=r"2 tensors are missing.*first: proj_out\.bias"):
        families.load(str(tmp_path / "s.safetensors"))


def test_weights_of_an_unknown_family_are_refused_with_a_suggestion(tmp_path):
    files.write(tmp_path / "w.safetensors", "wordz", weights())
    with pytest.raises(InputError, match="did you mean 'words'"):
        families.load(str(tmp_path / "w.safetensors"))
    with pytest.raises(InputError, match="did you mean 'scenes'"):
        families.load("scene")


# --- digest ---


def test_digest_of_fixed_weights_keeps_its_golden_value():
    fixed = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.tensor([1, 2], dtype=torch.int64)}
    assert digest(fixed) == "e3196922d4a5146ac6f7df566b8a9903"


def test_digest_does_not_depend_on_insertion_order_or_memory_layout():
    assert digest(dict(reversed(weights().items()))) == digest(weights())
    square = torch.arange(9.0).reshape(3, 3)
    assert digest({"w": square.T.contiguous().T}) == digest({"w": square})


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"v": torch.zeros(4)}, id="name"),
        pytest.param({"w": torch.zeros(4, dtype=torch.int32)}, id="dtype"),
        pytest.param({"w": torch.zeros(2, 2)}, id="shape"),
        pytest.param({"w": torch.tensor([0.0, 0.0, 0.0, -0.0])}, id="one-bit"),
        pytest.param({"w": torch.zeros(4), "x": torch.zeros(0)}, id="one-more"),
        pytest.param({}, id="nothing"),
    ],
)
@pytest.mark.parametrize("name_of", [digest, fingerprint])
def test_digest_of_other_weights_is_another(name_of, other):
    assert name_of(other) != name_of({"w": torch.zeros(4)})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.uint8])
def test_fingerprint_depends_on_every_bit_and_every_position(dtype):
    fixed = torch.arange(1, 8).to(dtype)
    name = fingerprint({"w": fixed})
    assert fingerprint({"w": fixed.clone()}) == name
    for place in range(7):
        changed = fixed.clone()
        changed[place] += 1
        assert fingerprint({"w": changed}) != name
    assert fingerprint({"w": fixed.flip(0)}) != name


def test_fingerprint_of_fixed_weights_keeps_its_golden_value():
    fixed = {"b": torch.arange(6, dtype=torch.float32).reshape(2, 3), "a": torch.tensor([1, 2], dtype=torch.int64)}
    assert fingerprint(fixed) == "58825fb46450c8b9d248369c82c8cfb8"


def test_fingerprint_of_weights_that_are_larger_than_what_is_summed_up_at_a_time_keeps_its_golden_value():
    fixed = {"w": torch.arange(200_001, dtype=torch.float32), "v": torch.arange(9, dtype=torch.int16)}
    assert len(fixed["w"]) > 3 * HOST_CHUNK
    assert fingerprint(fixed) == "f4ba001fce89c614fc8fe705ecfc72de"


def test_digest_of_names_with_separators_is_another():
    empty = torch.zeros(0, dtype=torch.uint8)
    assert digest({"a": empty, "b": empty}) != digest({"a|torch.uint8|(0,)|b": empty})


def test_digest_of_swapped_tensors_is_another():
    one, two = torch.ones(3), torch.full((3,), 2.0)
    assert digest({"a": one, "b": two}) != digest({"a": two, "b": one})
