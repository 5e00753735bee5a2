"""Several pictures on one sheet, each with a line of text above it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from spotlight.surface.plain_text import plain

if TYPE_CHECKING:
    from spotlight.compute.rewards.protocol import Image as Pixels

MARGIN = 6
TEXT_HEIGHT = 18
LONGEST_LABEL = 300
LEAST_WIDTH = 256
"""Smaller pictures are enlarged to about this width, so that their label fits."""


def contact_sheet(pictures: Sequence["Pixels"], labels: Sequence[str], columns: int) -> Image.Image:
    """Arrange pictures of one size in rows, enlarged by a whole factor without smoothing."""
    height, width, _ = pictures[0].shape
    scale = max(1, -(-LEAST_WIDTH // width))
    cell = (width * scale + MARGIN, height * scale + TEXT_HEIGHT + MARGIN)
    rows = -(-len(pictures) // columns)
    sheet = Image.new("RGB", (columns * cell[0] + MARGIN, rows * cell[1] + MARGIN), "white")
    drawing, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=13)
    for index, (picture, label) in enumerate(zip(pictures, labels, strict=True)):
        x, y = MARGIN + index % columns * cell[0], MARGIN + index // columns * cell[1]
        drawing.text((x, y), _cut(plain(label, LONGEST_LABEL), font, width * scale), fill="black", font=font)
        enlarged = np.repeat(np.repeat(picture, scale, axis=0), scale, axis=1)
        sheet.paste(Image.fromarray(enlarged), (x, y + TEXT_HEIGHT))
    return sheet


def _cut(text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """The text, or its beginning and an ellipsis, within `width` pixels."""
    if font.getlength(text) <= width:
        return text
    kept = next((n for n in range(len(text) - 1, 0, -1) if font.getlength(f"{text[:n]}...") <= width), 0)
    return f"{text[:kept]}..."
