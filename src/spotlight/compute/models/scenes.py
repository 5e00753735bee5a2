"""`scenes`: coloured shapes that follow GenEval's six tasks, described in a closed vocabulary."""

from spotlight.compute.data import scenes as data
from spotlight.compute.models.pixels import PixelSpec
from spotlight.compute.models.text_table import TextTable

SCENES = PixelSpec(
    family="scenes",
    size=data.SIZE,
    patch=8,
    layers=4,
    head_dim=14,
    rope_axes=(2, 6, 6),
    text=TextTable.of(data.VOCABULARY),
)
