"""The scene detector's filters give what their general forms give, bit for bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import ndimage

from spotlight.compute.rewards.geneval.filters import dilated, eroded, median, smoothed

SIDES = st.integers(1, 9)


@given(SIDES, SIDES, st.integers(0, 99), st.sampled_from([0.3, 0.8, 1.0]))
def test_erosion_and_dilation_equal_scipys(height, width, seed, share):
    mask = np.random.default_rng(seed).random((height, width)) < share
    np.testing.assert_array_equal(eroded(mask), ndimage.binary_erosion(mask))
    np.testing.assert_array_equal(dilated(mask), ndimage.binary_dilation(mask))


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30))
def test_median_equals_numpys(values):
    column = np.array(values)
    assert median(column) == np.median(column)
    rows = np.stack([column, column[::-1] * 2], axis=1)
    np.testing.assert_array_equal(median(rows), np.median(rows, axis=0))


def bilateral(rgb, noise):
    """By the definition, one neighbour after the other."""
    height, width = rgb.shape[:2]
    scale = 1.0 / (2 * 3 * (2.2 * noise) ** 2)
    padded = np.pad(rgb, ((2, 2), (2, 2), (0, 0)), mode="reflect")
    total, weights = np.zeros_like(rgb), np.zeros((height, width, 1))
    for dy in range(-2, 3):
        for dx in range(-2, 3):
            near = padded[2 + dy : 2 + dy + height, 2 + dx : 2 + dx + width]
            difference = near - rgb
            squared = np.einsum("hwc,hwc->hw", difference, difference)
            weight = np.exp(-squared * scale - (dx * dx + dy * dy) / (2 * 1.2**2))[..., None]
            total += weight * near
            weights += weight
    return total / weights


@pytest.mark.parametrize("size", [(48, 48), (5, 31), (3, 3)])
def test_smoothing_weighs_every_neighbour_by_nearness_and_likeness(size):
    rgb = np.random.default_rng(0).random((*size, 3))
    np.testing.assert_array_equal(smoothed(rgb, 0.1), bilateral(rgb, 0.1))


def test_smoothing_keeps_an_edge_and_removes_noise():
    clean = np.zeros((20, 20, 3))
    clean[:, 10:] = 1.0
    noisy = clean + np.random.default_rng(0).normal(scale=0.03, size=clean.shape)
    error = np.abs(smoothed(noisy, 0.03) - clean)
    assert error.mean() < np.abs(noisy - clean).mean() / 2
    assert error[:, 9:11].max() < 0.1
