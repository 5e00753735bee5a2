"""Weight files: safetensors reads every bit, name, type and shape that was written."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from spotlight.compute.weights.download import DTYPES, write
from spotlight.core.errors import WeightsError

SHAPES = st.lists(st.integers(0, 5), max_size=3)
TENSORS = st.dictionaries(st.text(min_size=1, max_size=8), st.tuples(st.sampled_from(list(DTYPES)), SHAPES), max_size=6)


@given(described=TENSORS, metadata=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_library_reads_what_was_written(tmp_path_factory, described, metadata):
    tensors = {
        name: torch.randn(shape).to(dtype) for name, (dtype, shape) in described.items() if name != "__metadata__"
    }
    path = tmp_path_factory.getbasetemp() / "weights.safetensors"
    write(path, tensors, metadata)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    assert all(read[name].dtype == tensor.dtype and torch.equal(read[name], tensor) for name, tensor in tensors.items())
    with safe_open(path, framework="pt") as file:
        assert (file.metadata() or {}) == metadata


def test_numbers_are_aligned_so_that_a_mapping_of_the_file_can_be_computed_with(tmp_path):
    write(tmp_path / "w", {"a": torch.ones(3).half(), "b": torch.ones(3), "c": torch.ones(1).double()}, {"k": "v"})
    assert all(tensor.data_ptr() % tensor.element_size() == 0 for tensor in load_file(tmp_path / "w").values())


def test_numbers_of_a_type_that_is_never_trained_are_refused_by_name(tmp_path):
    with pytest.raises(WeightsError, match=r"odd is of type torch\.int8, but trained weights can only be"):
        write(tmp_path / "w", {"odd": torch.ones(3, dtype=torch.int8)}, {})
    assert list(tmp_path.iterdir()) == []


def test_transposed_weights_are_written_in_the_order_of_their_indices(tmp_path):
    turned = torch.arange(6.0).reshape(2, 3).t()
    write(tmp_path / "w", {"w": turned}, {})
    assert torch.equal(load_file(tmp_path / "w")["w"], turned)
