"""Which version of Spotlight wrote a run folder, and the refusal of one that this version cannot read.

A folder has one format: `SCHEMA` in the headers of its journal (core/events.py). Of the same format are
- records with fields that have defaults here and are absent there;
- settings that are absent there: they take their defaults, which keep what an earlier version did.
Anything else is refused, in one sentence that names the version (tests/unit/test_run_versions.py).
"""

import json
from pathlib import Path

from spotlight import __version__
from spotlight.core.errors import InputError
from spotlight.core.run_files import CONFIG

WRITER = "spotlight"
"""Key of config.json: the version that wrote it last."""


class OtherVersion(InputError):
    """A run folder that another version wrote and this one cannot read."""


def writer_of(run: Path) -> str | None:
    """The version that wrote the run's settings last; None if they do not say."""
    try:
        found = json.loads((run / CONFIG).read_text())
    except (OSError, ValueError):
        return None
    writer = found.get(WRITER) if isinstance(found, dict) else None
    return writer if isinstance(writer, str) else None


def other_version(run: Path, found: str) -> OtherVersion:
    """The refusal of a run whose folder has `found`, which this version does not know."""
    writer = writer_of(run)
    if writer in (None, __version__):
        by, remedy = "another build of spotlight", "use the one that wrote it"
    else:
        by, remedy = f"spotlight {writer}", f"install spotlight-rl=={writer} in an environment of its own to open it"
    return OtherVersion(
        f"the run {run.name} was written by {by}: it has {found}, which spotlight {__version__} does not know; "
        f"{remedy}, or start a new run from its weights with --model.name {run}."
    )
