"""The matrices that resize a batch give what Pillow gives, bit for bit."""

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spotlight.compute.rewards.ocr.on_gpu import resize
from spotlight.compute.rewards.ocr.on_gpu.resize import FRACTION, resizing, weights


@settings(max_examples=60)
@given(st.integers(1, 64), st.integers(1, 400), st.integers(1, 60), st.integers(0, 9))
def test_pictures_of_any_size_are_resized_as_pillow_resizes_them(height, width, frames, seed):
    picture = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    target = (frames * 8, 48)
    how = resizing(height, width, target[1], target[0])
    assert how is not None
    found = how.apply(picture.transpose(2, 0, 1).astype(np.float64), how.down, how.across)
    expected = PIL.Image.fromarray(picture).resize(target, PIL.Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(found.transpose(1, 2, 0), np.asarray(expected))


@pytest.mark.parametrize(("source", "target"), [(32, 48), (96, 144), (64, 48), (1, 16), (700, 3200)])
def test_each_pixel_is_a_whole_mixture_of_pixels(source, target):
    matrix = weights(source, target)
    assert (matrix == matrix.round()).all()
    np.testing.assert_allclose(matrix.sum(axis=1), FRACTION, atol=source)


def test_resizing_that_is_not_pillows_is_not_offered(monkeypatch):
    monkeypatch.setattr(resize, "FRACTION", 4)
    assert resizing.__wrapped__(31, 95, 48, 144) is None
