"""Names that the shell completes: runs and recipes."""

from pathlib import Path


def runs(incomplete: str) -> list[str]:
    """Runs of the default folder, or folders of runs if a path is typed."""
    from spotlight.core.run_files import CONFIG, run_names

    if "/" not in incomplete:
        return [name for name in run_names() if name.startswith(incomplete)]
    place = Path(incomplete).parent
    return [str(path.parent) for path in sorted(place.glob(f"*/{CONFIG}")) if str(path.parent).startswith(incomplete)]


def recipes(incomplete: str) -> list[str]:
    """Shipped recipes and YAML files of the working folder; the last of several that are joined by +."""
    from spotlight.assets import asset

    *before, last = incomplete.split("+")
    known = sorted(path.stem for path in asset("recipes").glob("*.yaml"))
    known += sorted(str(path) for path in Path().glob("*.yaml"))
    return ["+".join([*before, name]) for name in known if name.startswith(last)]
