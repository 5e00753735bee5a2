"""Stand-in model of a paced worker: one small layer, with the shapes of the recipe's family."""

from typing import cast

import torch
from diffusers import QwenImageTransformer2DModel
from torch import Tensor, nn

from spotlight.compute.models import families
from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.pixels import CHANNELS, PixelAdapter, PixelSpec
from spotlight.compute.profiling.pace import ProfiledPace
from spotlight.core.types import Size
from spotlight.node.paced.device import PacedDevice

GAIN = 0.5


class _Layer(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((channels,), GAIN))

    def forward(self, x_BSC: Tensor) -> Tensor:
        return x_BSC * self.gain


class PacedAdapter(PixelAdapter):
    """Predicts a faded copy of its input as the clean picture."""

    def __init__(self, spec: PixelSpec, pace: ProfiledPace, device: PacedDevice) -> None:
        super().__init__(spec, cast(QwenImageTransformer2DModel, _Layer(CHANNELS * spec.patch**2)))
        self._pace = pace
        self._paced_device = device
        self.rows_seen = 0
        """Rows of all forwards so far; guidance takes two per sample."""

    def predict(self, x_BSC: Tensor, sigma_B: Tensor, cond: ConditionBatch, size: Size) -> Tensor:
        self.rows_seen += x_BSC.shape[0]
        return cast(Tensor, self.transformer(x_BSC))

    def decode(self, x0_BSC: Tensor, size: Size) -> Tensor:
        pictures = x0_BSC.shape[0]
        return self._paced_device.take(
            lambda: PixelAdapter.decode(self, x0_BSC, size), lambda _: self._pace.decode(pictures)
        )


def spec_named(model: str) -> PixelSpec:
    """Spec of a shipped family, or of a weights file's family."""
    return families.spec_of(model if model in families.SPECS else families.read_weights(model).family)
