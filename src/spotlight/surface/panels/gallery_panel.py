"""Held-out pictures: the same prompt and seed across policy versions, and the extremes of the newest version."""

import math
from collections.abc import Callable, Mapping

import msgspec

from spotlight.surface.formats import UNKNOWN, score
from spotlight.surface.projections import HeldOutPicture, RunView

MOST_STRIPS = 12
MOST_EXTREMES = 3


class ShownPicture(msgspec.Struct, frozen=True, kw_only=True):
    """One picture or video, by one policy."""

    iteration: int
    path: str
    """Within the run's folder."""
    reward: float | None

    @property
    def is_video(self) -> bool:
        return not self.path.endswith(".png")

    @property
    def words(self) -> str:
        """The reward as text."""
        return UNKNOWN if self.reward is None else score(self.reward)


class PictureStrip(msgspec.Struct, frozen=True, kw_only=True):
    """One prompt and seed, by the iterations of their policies."""

    prompt: str
    seed: int
    pictures: list[ShownPicture]
    is_pair: bool = False
    """Whether it has pictures of both the first and the newest version."""

    @property
    def first(self) -> ShownPicture:
        return self.pictures[0]

    @property
    def last(self) -> ShownPicture:
        return self.pictures[-1]


class GalleryPanel(msgspec.Struct, frozen=True, kw_only=True):
    strips: list[PictureStrip]
    """The first prompts; pairs come first."""
    versions: list[int]
    """Iterations after which pictures were drawn."""
    best: list[PictureStrip]
    """The highest rewards of the newest version, highest first."""
    worst: list[PictureStrip]
    """The lowest rewards of the newest version, lowest first."""

    @property
    def extremes(self) -> list[tuple[PictureStrip, str]]:
        return [*((strip, "best") for strip in self.best), *((strip, "worst") for strip in self.worst)]


def gallery_panel(
    view: RunView, prompts: Mapping[str, str], is_there: Callable[[str], bool] = lambda path: True
) -> GalleryPanel:
    """`is_there` says whether a picture of the journal can be shown."""
    seen: dict[tuple[int, int], list[HeldOutPicture]] = {}
    for picture in view.gallery:
        seen.setdefault((picture.group, picture.seed), []).append(picture)
    strips = [_strip(seen[key], prompts, is_there) for key in sorted(seen)]
    strips = [strip for strip in strips if strip.pictures]
    versions = sorted({picture.iteration for strip in strips for picture in strip.pictures})
    ends = versions[:1] + versions[-1:]
    strips = [
        msgspec.structs.replace(
            strip, is_pair=len(versions) > 1 and [strip.first.iteration, strip.last.iteration] == ends
        )
        for strip in strips
    ]
    newest = [strip for strip in strips if strip.last.iteration == versions[-1] and strip.last.reward is not None]
    ranked = sorted(newest, key=lambda strip: -(strip.last.reward or 0.0))
    most = min(MOST_EXTREMES, len(ranked) // 2)
    if not ranked or ranked[0].last.reward == ranked[-1].last.reward:
        most = 0
    return GalleryPanel(
        strips=sorted(strips, key=lambda strip: not strip.is_pair)[:MOST_STRIPS],
        versions=versions,
        best=ranked[:most],
        worst=ranked[::-1][:most],
    )


def _strip(pictures: list[HeldOutPicture], prompts: Mapping[str, str], is_there: Callable[[str], bool]) -> PictureStrip:
    newest = {picture.iteration: picture for picture in pictures}
    shown = [
        ShownPicture(
            iteration=iteration,
            path=picture.path,
            reward=picture.reward if math.isfinite(picture.reward) else None,
        )
        for iteration, picture in sorted(newest.items())
        if is_there(picture.path)
    ]
    return PictureStrip(
        prompt=prompts.get(pictures[0].prompt, pictures[0].prompt), seed=pictures[0].seed, pictures=shown
    )
