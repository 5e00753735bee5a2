"""The panels of a run as HTML fragments: the same templates for the report, the live page and its updates."""

from collections.abc import Callable

from markupsafe import Markup

from spotlight.surface.html.crew_drawing import drawn_crews
from spotlight.surface.html.templating import rendered
from spotlight.surface.html.timeline_drawing import drawn_timeline
from spotlight.surface.panels.run_panels import Panels
from spotlight.surface.projections import RunView

PANELS = tuple(Panels.__struct_fields__)
"""Names of the panels; each has a template `panel_NAME.html`."""


def report_fragments(panels: Panels, view: RunView, media: Callable[[str], str]) -> dict[str, Markup]:
    """All panels with drawings; `media` returns the address of a picture."""
    drawings = {
        "timeline": drawn_timeline(view) if view.timeline.rows else None,
        "crews": drawn_crews(panels.crews, view) if panels.crews is not None else None,
    }
    return {name: _fragment(name, panels, is_live=False, media=media, drawing=drawings.get(name)) for name in PANELS}


def page_fragments(panels: Panels, view: RunView, media: Callable[[str], str]) -> dict[str, Markup]:
    """All panels for the live page, which draws charts and timeline itself."""
    crews = drawn_crews(panels.crews, view) if panels.crews is not None else None
    return {
        name: _fragment(name, panels, is_live=True, media=media, drawing=crews if name == "crews" else None)
        for name in PANELS
    }


def _fragment(name: str, panels: Panels, *, is_live: bool, media: Callable[[str], str], drawing: object) -> Markup:
    panel = getattr(panels, name)
    return rendered(f"panel_{name}.html", p=panel, is_live=is_live, media=media, drawing=drawing)
