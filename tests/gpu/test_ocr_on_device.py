"""OCR on a CUDA device has the scores of the reference, also while the policy trains in a lower precision."""

import numpy as np
import pytest
import torch

from spotlight.compute.data import words
from spotlight.compute.rewards.in_process import InProcessScorer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.mark.parametrize("name", ["ocr_graded", "ocr_judge"])
@pytest.mark.parametrize("precision", ["highest", "high"])
def test_scores_on_the_device_equal_those_of_onnxruntime(name, precision):
    rng = np.random.default_rng(0)
    prompts = words.prompts("test")[:96]
    images = [words.render(prompt, rng) for prompt in prompts]
    # Every other picture shows another word.
    prompts[1::2] = prompts[-1::-2]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        found = InProcessScorer("cuda").score(name, images, prompts)
        expected = InProcessScorer("cpu").score(name, images, prompts)
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(np.unique(expected.total)) > 1
    np.testing.assert_allclose(found.total, expected.total, atol=1e-4)
