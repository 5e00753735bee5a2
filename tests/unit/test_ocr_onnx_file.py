"""ONNX files are read as written, and what would change a result is refused, not skipped."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx_bytes import attribute, field, graph, ints, model, node, tensor

from spotlight.compute.rewards.ocr.on_gpu.onnx_file import read_graph
from spotlight.compute.rewards.ocr.recogniser import PPOCR_V6_TINY
from spotlight.core.errors import WeightsError


def test_graph_gives_nodes_attributes_and_constants_as_they_were_written():
    weights = np.arange(6, dtype=np.float32).reshape(2, 3)
    content = model(
        graph(
            [
                node("Conv", ["x", "w"], ["y"], [attribute("pads", ints(0, -1)), attribute("alpha", 0.5)]),
                node("Cast", ["y"], ["z"], [attribute("to", 7), attribute("mode", "floor")]),
                node("Constant", [], ["c"], [attribute("value", np.array([3, -4], np.int64))]),
            ],
            {"w": weights},
        ),
        opset=11,
    )
    read = read_graph(content)
    assert (read.opset, read.inputs, read.outputs) == (11, ("x",), ("z",))
    conv, cast, constant = read.nodes
    assert (conv.op, conv.inputs, conv.outputs) == ("Conv", ("x", "w"), ("y",))
    assert conv.attributes == {"pads": (0, -1), "alpha": 0.5}
    assert cast.attributes == {"to": 7, "mode": "floor"}
    np.testing.assert_array_equal(constant.attributes["value"], [3, -4])
    np.testing.assert_array_equal(read.constants["w"], weights)


def test_numbers_of_a_tensor_may_be_listed_instead_of_raw():
    listed = field(1, 2) + field(2, 1) + field(4, struct.pack("<2f", 1.5, -2.0)) + field(8, b"w")
    read = read_graph(model(graph([node("Relu", ["x"], ["z"])], {}, extra=field(5, listed))))
    np.testing.assert_array_equal(read.constants["w"], np.array([1.5, -2.0], np.float32))


def test_shipped_network_has_the_operations_it_is_known_for():
    read = read_graph(PPOCR_V6_TINY.weights.load())
    assert len(read.nodes) == 219
    assert len({node.op for node in read.nodes}) == 16
    assert len(read.constants) == 120


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (model(graph([node("F", ["x"], ["z"], domain="com.acme")], {})), "an operation of the domain 'com.acme'"),
        (model(graph([], {}, extra=field(15, b""))), "sparse tensors"),
        (model(graph([], {})) + field(25, b""), "model-local functions"),
        (model(graph([node("If", ["x"], ["z"], [field(1, b"then") + field(20, 5)])], {})), "'then' of kind 5"),
        (model(graph([], {}, extra=field(5, tensor("w", np.zeros(1, np.float32)) + field(14, 1)))), "tensor 'w'"),
        (model(graph([], {}, extra=field(5, field(2, 11) + field(8, b"d")))), "'d' of element type 11"),
    ],
)
def test_what_would_change_the_result_is_refused_with_its_name(content, complaint):
    with pytest.raises(WeightsError, match=rf"uses .*{complaint}.*run the graph with onnxruntime"):
        read_graph(content)


def test_tensor_with_too_few_numbers_is_refused():
    short = field(1, 3) + field(2, 1) + field(9, bytes(8)) + field(8, b"w")
    with pytest.raises(WeightsError, match=r"'w' of shape \(3,\) has 2 numbers"):
        read_graph(model(graph([], {}, extra=field(5, short))))


@given(st.integers(1, 200), st.binary(max_size=40))
def test_cut_or_foreign_bytes_are_refused_and_never_raise_anything_else(cut, foreign):
    whole = model(graph([node("Conv", ["x", "w"], ["z"], [attribute("pads", ints(0))])], {"w": np.ones(9, np.float32)}))
    with pytest.raises(WeightsError):
        read_graph(whole[: -min(cut, len(whole) - 1)])
    try:
        read_graph(foreign)
    except WeightsError:
        pass
    else:
        pytest.fail("bytes that hold no graph were read as one")
