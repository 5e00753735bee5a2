"""Before and after: the same held-out prompts and seeds, drawn by the first and the last policy with pictures."""

import base64
from collections.abc import Mapping
from pathlib import Path

from spotlight.surface.projections import HeldOutPicture, RunView
from spotlight.surface.report.formats import safe, score
from spotlight.surface.report.markup import section

MOST_PAIRS = 12
LARGEST_BYTES = 4 * 2**20
"""A larger picture is left out, to keep the page small enough for mail."""
PNG = b"\x89PNG\r\n\x1a\n"


def gallery_section(view: RunView, run_folder: Path, prompts: Mapping[str, str]) -> str:
    pairs = [
        (before, after)
        for before, after in before_and_after(view)
        if _png(run_folder, before) and _png(run_folder, after)
    ]
    if not pairs:
        return ""
    first, last = pairs[0]
    lead = f"Held-out prompts, same seeds: after {first.iteration} and after {last.iteration} iterations."
    cells = "".join(_pair(before, after, run_folder, prompts) for before, after in pairs[:MOST_PAIRS])
    return section("Before and after", lead, f'<div class="gallery">{cells}</div>')


def before_and_after(view: RunView) -> list[tuple[HeldOutPicture, HeldOutPicture]]:
    """Pairs of pictures of one prompt and seed by two policies, in the order of prompts."""
    seen: dict[tuple[int, int], list[HeldOutPicture]] = {}
    for picture in view.gallery:
        seen.setdefault((picture.group, picture.seed), []).append(picture)
    pairs = []
    for key in sorted(seen):
        pictures = sorted(seen[key], key=lambda picture: picture.iteration)
        if pictures[0].iteration < pictures[-1].iteration:
            pairs.append((pictures[0], pictures[-1]))
    return pairs


def _pair(before: HeldOutPicture, after: HeldOutPicture, run_folder: Path, prompts: Mapping[str, str]) -> str:
    caption = prompts.get(after.prompt, after.prompt)
    images = (_image(one, run_folder, when, caption) for one, when in ((before, "before"), (after, "after")))
    return f"<figure><div>{''.join(images)}</div><figcaption>{safe(caption)}</figcaption></figure>"


def _image(picture: HeldOutPicture, run_folder: Path, when: str, caption: str) -> str:
    data = base64.b64encode(_png(run_folder, picture) or b"").decode()
    return (
        f'<span><img src="data:image/png;base64,{data}" alt="{safe(caption)}, {when}">'
        f"<small>{when} <b>{score(picture.reward)}</b></small></span>"
    )


def _png(run_folder: Path, picture: HeldOutPicture) -> bytes | None:
    """Bytes of a picture in the run's folder; None if it is missing, elsewhere, too large or not a PNG."""
    path = (run_folder / picture.path).resolve()
    if not path.is_relative_to(run_folder.resolve()) or not path.is_file() or path.stat().st_size > LARGEST_BYTES:
        return None
    data = path.read_bytes()
    return data if data.startswith(PNG) else None
