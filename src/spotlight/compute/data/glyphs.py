"""The glyph atlas of `words`: letters a-z in several faces, rasterised once and shipped as an image.

Shipping pixels instead of fonts makes the pretraining data the same bytes on every machine, whatever version of
FreeType is installed. `python -m spotlight.compute.data.glyphs` redraws the atlas from matplotlib's fonts.
"""

from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from spotlight.assets import asset

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FACES = (
    "DejaVuSansMono", "DejaVuSansMono-Bold", "DejaVuSansMono-Oblique", "DejaVuSans", "DejaVuSans-Bold",
    "DejaVuSerif", "DejaVuSerif-Bold", "STIXGeneralBol",
)  # fmt: skip
CELL_WIDTH, CELL_HEIGHT = 12, 32
FONT_SIZE, BASELINE = 19, 22


@cache
def atlas() -> NDArray[np.uint8]:
    """Coverage in 0..255, indexed [face, letter, y, x]."""
    with Image.open(asset("words/glyphs.png")) as picture:
        flat = np.asarray(picture.convert("L"))
    grid = flat.reshape(len(FACES), CELL_HEIGHT, len(LETTERS), CELL_WIDTH)
    return np.ascontiguousarray(grid.transpose(0, 2, 1, 3))


def draw_letter(letter: str, font: ImageFont.FreeTypeFont) -> Image.Image:
    """Draw one letter on its baseline, centred; letters wider than the cell are squeezed into it."""
    left, _, right, _ = font.getbbox(letter, anchor="ls")
    width = int(right - left)
    canvas = Image.new("L", (width, CELL_HEIGHT), 0)
    ImageDraw.Draw(canvas).text((-left, BASELINE), letter, fill=255, font=font, anchor="ls")
    if width > CELL_WIDTH:
        canvas = canvas.resize((CELL_WIDTH, CELL_HEIGHT), Image.Resampling.LANCZOS)
    cell = Image.new("L", (CELL_WIDTH, CELL_HEIGHT), 0)
    cell.paste(canvas, ((CELL_WIDTH - canvas.width) // 2, 0))
    return cell


def draw_atlas(fonts: Path) -> Image.Image:
    """Draw one row per face, one cell per letter."""
    sheet = Image.new("L", (CELL_WIDTH * len(LETTERS), CELL_HEIGHT * len(FACES)), 0)
    for row, face in enumerate(FACES):
        font = ImageFont.truetype(str(fonts / f"{face}.ttf"), FONT_SIZE)
        for column, letter in enumerate(LETTERS):
            sheet.paste(draw_letter(letter, font), (column * CELL_WIDTH, row * CELL_HEIGHT))
    return sheet


if __name__ == "__main__":
    import matplotlib

    draw_atlas(Path(matplotlib.get_data_path()) / "fonts" / "ttf").save(asset("words/glyphs.png"), optimize=True)
