"""A recognition network on a GPU: resizes, reads and selects letters in large batches on the device.

Pictures are copied to the device as bytes, and only `Frames` are copied back. Invariant: a reading differs from the
reference's only by the rounding of float32, independent of the process's other computations
(tests/unit/test_ocr_torch_net.py, tests/gpu/test_ocr_on_device.py).
"""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spotlight.compute.models.families import usable_device
from spotlight.compute.rewards.ocr.lines import BLANK, HEIGHT, Classes, Frames, fit_line, fitted_width
from spotlight.compute.rewards.ocr.on_gpu.onnx_file import read_graph
from spotlight.compute.rewards.ocr.on_gpu.resize import resizing
from spotlight.compute.rewards.ocr.on_gpu.torch_net import TorchNet
from spotlight.compute.rewards.ocr.weights import PackagedFile
from spotlight.compute.rewards.protocol import Image

PIXELS_AT_ONCE = 512 * 48 * 144
"""Pixels per batch: bounds the activations of long lines to about 2 GB."""


class TorchLines:
    """The network with torch on one device."""

    name = "torch"
    batch = 512

    def __init__(self, file: PackagedFile, folder: Path, device: str) -> None:
        self._device = usable_device(device)
        self._net = TorchNet(read_graph(file.load(folder)), self._device)

    def __call__(self, images: Sequence[Image], wanted: Sequence[Classes]) -> list[Frames]:
        at_once = max(1, PIXELS_AT_ONCE // (HEIGHT * fitted_width(images[0]))) if images else 1
        frames: list[Frames] = []
        for start in range(0, len(images), at_once):
            frames += self._frames(images[start : start + at_once], wanted[start : start + at_once])
        return frames

    @torch.inference_mode()
    def _frames(self, images: Sequence[Image], wanted: Sequence[Classes]) -> list[Frames]:
        posteriors_BTC = self._net(self._fitted(images))
        best_BT = posteriors_BTC.argmax(dim=2).cpu().numpy()
        blank_BT = posteriors_BTC[:, :, BLANK].float().cpu().numpy()
        letters_BTK = self._letters(posteriors_BTC, wanted).float().cpu().numpy()
        return [
            Frames(best, blank, np.ascontiguousarray(letters[:, : len(classes)]))
            for best, blank, letters, classes in zip(best_BT, blank_BT, letters_BTK, wanted, strict=True)
        ]

    def _fitted(self, images: Sequence[Image]) -> Tensor:
        """The images as the network's input; images of one size are resized together."""
        same_size: dict[tuple[int, ...], list[int]] = defaultdict(list)
        for index, image in enumerate(images):
            same_size[image.shape].append(index)
        lines_BCHW = torch.empty(len(images), 3, HEIGHT, fitted_width(images[0]), device=self._device)
        for members in same_size.values():
            lines_BCHW[members] = self._resized([images[index] for index in members])
        return lines_BCHW

    def _resized(self, images: Sequence[Image]) -> Tensor:
        """The result of `fit_line`, for images of one size."""
        height, width = images[0].shape[:2]
        how = resizing(height, width, HEIGHT, fitted_width(images[0]))
        if how is None:
            return torch.from_numpy(np.stack([fit_line(image) for image in images])).to(self._device)
        down, across = (torch.tensor(matrix, device=self._device) for matrix in (how.down, how.across))
        rgb_BHWC = torch.from_numpy(np.stack(images)).to(self._device)
        bgr_BCHW = rgb_BHWC.flip(3).permute(0, 3, 1, 2).double()
        return how.apply(bgr_BCHW, down, across).float() / 127.5 - 1.0

    def _letters(self, posteriors_BTC: Tensor, wanted: Sequence[Classes]) -> Tensor:
        """Per line and frame, the sum over the classes of each wanted letter; shorter texts end in zeros."""
        length = max(len(classes) for classes in wanted)
        variants = max((len(same) for classes in wanted for same in classes), default=1)
        index_BKV = np.zeros((len(wanted), length, max(1, variants)), np.int64)
        real_BKV = np.zeros(index_BKV.shape, np.float32)
        for row, classes in enumerate(wanted):
            for column, same in enumerate(classes):
                index_BKV[row, column, : len(same)] = same
                real_BKV[row, column, : len(same)] = 1.0
        frames = posteriors_BTC.shape[1]
        flat_BTN = torch.from_numpy(index_BKV.reshape(len(wanted), 1, -1)).to(self._device).expand(-1, frames, -1)
        chosen_BTKV = posteriors_BTC.gather(2, flat_BTN).unflatten(2, index_BKV.shape[1:])
        return (chosen_BTKV * torch.from_numpy(real_BKV).to(self._device)[:, None]).sum(dim=3)
