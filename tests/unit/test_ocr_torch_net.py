"""The recognition network with torch reads what onnxruntime reads, and refuses graphs that it cannot run rightly."""

import numpy as np
import onnxruntime
import pytest
import torch
from onnx_bytes import attribute, graph, ints, model, node
from test_ocr import WORDS, ask, blank, draw, half_erased, misspell, noisy

from spotlight.compute.rewards.ocr.lines import OnnxLines, fit_line
from spotlight.compute.rewards.ocr.ocr_rewards import OcrGraded, OcrJudge
from spotlight.compute.rewards.ocr.on_gpu.onnx_file import read_graph
from spotlight.compute.rewards.ocr.on_gpu.torch_net import TorchNet
from spotlight.compute.rewards.ocr.recogniser import EN_PPOCR_V4, PPOCR_V6_TINY, Recogniser
from spotlight.compute.rewards.ocr.weights import ASSETS, open_session
from spotlight.core.errors import EnvironmentProblem, WeightsError

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def with_onnxruntime(content, x):
    return onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.float64, marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("config", [PPOCR_V6_TINY, EN_PPOCR_V4], ids=lambda config: config.name)
def test_posteriors_of_rendered_words_equal_onnxruntimes(config, dtype):
    lines = np.stack([fit_line(draw(word)) for word in WORDS])
    session = open_session(config.weights, ASSETS)
    expected = session.run(None, {session.get_inputs()[0].name: lines})[0]
    net = TorchNet(read_graph(config.weights.load()), CPU, dtype)
    found = net(torch.from_numpy(lines)).numpy()
    np.testing.assert_allclose(found, expected, atol=1e-5)
    np.testing.assert_array_equal(found.argmax(axis=2), expected.argmax(axis=2))
    # A row does not depend on those beside it.
    np.testing.assert_allclose(net(torch.from_numpy(lines[:1])).numpy(), expected[:1], atol=1e-5)


def mixed_pictures():
    rng = np.random.default_rng(1)
    images = [draw(word) for word in WORDS] + [draw(misspell(word, 2)) for word in WORDS[:4]]
    images += [half_erased("planet"), blank(), noisy(draw("hello"), 0.4, rng), draw("hello", 24, 72)]
    images += [draw("summer", 48, 200), draw("a", 1, 300), draw("garden", 64, 100), draw("bridge", 128, 256)]
    targets = [*WORDS, *WORDS[:4], "planet", "any", "hello", "hello", "summer", "日本x", "x" * 30, "bridge"]
    return images, targets


@pytest.mark.parametrize("reward", [OcrGraded, OcrJudge])
@pytest.mark.slow
def test_rewards_read_with_torch_equal_those_of_the_reference(reward):
    images, targets = mixed_pictures()
    prompts = [ask(target) for target in targets]
    reference, other = reward(), reward()
    other.use_torch("cpu")
    assert other.version != reference.version
    expected, found = reference.score(images, prompts), other.score(images, prompts)
    assert expected.components.keys() == found.components.keys()
    for name, values in expected.components.items():
        np.testing.assert_allclose(found.components[name], values, atol=1e-5, err_msg=name)


def test_readings_with_torch_have_the_same_text_letters_and_blanks():
    images, targets = mixed_pictures()
    reference, other = Recogniser(PPOCR_V6_TINY), Recogniser(PPOCR_V6_TINY)
    other.use_torch("cpu")
    for expected, found in zip(reference.read(images, targets), other.read(images, targets), strict=True):
        assert found.text == expected.text
        # Both are as far as this from the posteriors in float64 where a picture is no clean word.
        np.testing.assert_allclose(found.letters, expected.letters, atol=1e-4)
        np.testing.assert_allclose(found.blank, expected.blank, atol=1e-4)
    assert other.read([], []) == []
    assert (reference.runner, other.runner) == (OnnxLines.name, "torch")


def test_device_that_is_not_there_is_refused():
    with pytest.raises(EnvironmentProblem, match="the device is 'cuda:99'"):
        OcrGraded().use_device("cuda:99")


def test_scores_do_not_depend_on_the_precision_that_training_chose_nor_change_it():
    images, targets = [draw(misspell(word, 1)) for word in WORDS], [ask(word) for word in WORDS]
    reward = OcrGraded()
    reward.use_torch("cpu")
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("highest")
        expected = reward.score(images, targets).total
        torch.set_float32_matmul_precision("medium")
        np.testing.assert_array_equal(reward.score(images, targets).total, expected)
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


# Graphs of one operation


def one_op(op, attributes, constants=(), opset=11):
    arrays = {f"c{index}": array for index, array in enumerate(constants)}
    return model(graph([node(op, ["x", *arrays], ["z"], attributes)], arrays), opset)


def floats(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def int64s(*numbers):
    return np.array(numbers, np.int64)


CONV = [attribute("kernel_shape", ints(3, 3)), attribute("strides", ints(2, 1)), attribute("dilations", ints(1, 1))]
POOL = [attribute("kernel_shape", ints(3, 2)), attribute("strides", ints(3, 2)), attribute("pads", ints(1, 0, 1, 0))]


@pytest.mark.parametrize(
    ("op", "attributes", "constants"),
    [
        ("Conv", [*CONV, attribute("pads", ints(1, 0, 1, 0)), attribute("group", 2)], [floats(4, 2, 3, 3), floats(4)]),
        ("Conv", CONV[:1], [floats(4, 4, 3, 3)]),
        ("AveragePool", POOL, []),
        ("AveragePool", [*POOL, attribute("count_include_pad", 1)], []),
        ("HardSigmoid", [attribute("alpha", 0.3)], []),
        ("ReduceMean", [attribute("axes", ints(1, -1)), attribute("keepdims", 0)], []),
        ("BatchNormalization", [attribute("epsilon", 0.1)], [floats(4), floats(4), floats(4), floats(4) ** 2]),
        ("Softmax", [attribute("axis", 3)], []),
        ("Transpose", [attribute("perm", ints(0, 2, 1, 3))], []),
        ("Unsqueeze", [attribute("axes", ints(2))], []),
        ("Reshape", [], [int64s(0, -1, 6)]),
        ("Slice", [], [int64s(1, -4), int64s(3, 99), int64s(1, 3), int64s(1, 2)]),
        ("Clip", [], [np.float32(-0.5), np.float32(0.5)]),
        ("GlobalAveragePool", [], []),
        ("Pow", [], [np.float32(2.0)]),
    ],
)
def test_operation_computes_what_onnxruntime_computes(op, attributes, constants):
    content = one_op(op, attributes, [np.asarray(constant) for constant in constants])
    x = floats(2, 4, 6, 6)
    found = TorchNet(read_graph(content), CPU)(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(found, with_onnxruntime(content, x), atol=1e-5)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (one_op("Erff", []), r"an operation 'Erff'.*did you mean 'Erf'\?"),
        (one_op("Relu", [attribute("slope", 0.1)]), r"'Relu' has the attribute slope = 0\.1"),
        (
            one_op("Conv", [*CONV, attribute("pads", ints(1, 1, 0, 0))], [floats(4, 4, 3, 3)]),
            r"'Conv'.* pads = \(1, 1,",
        ),
        (one_op("AveragePool", [*POOL, attribute("ceil_mode", 1)]), "ceil_mode = 1"),
        (one_op("Cast", [attribute("to", 10)]), "to = 10"),
        (one_op("ReduceMean", []), r"'ReduceMean' has the attribute axes = \(left out\)"),
        (one_op("Relu", [], opset=14), "operator set 14"),
    ],
)
def test_graph_that_would_be_run_wrongly_is_refused_before_it_runs(content, complaint):
    with pytest.raises(WeightsError, match=complaint):
        TorchNet(read_graph(content), CPU)


def test_softmax_over_joined_axes_is_refused():
    net = TorchNet(read_graph(one_op("Softmax", [attribute("axis", 1)])), CPU)
    with pytest.raises(WeightsError, match="softmax over axis 1 of 3"):
        net(torch.ones(1, 2, 3))
