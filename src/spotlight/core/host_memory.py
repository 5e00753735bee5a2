"""Memory of this machine, as Linux reports it."""

from pathlib import Path

MEMINFO = Path("/proc/meminfo")


def host_memory() -> tuple[int | None, int | None]:
    """Available and total bytes of the host; None where Linux does not report them."""
    try:
        rows = dict(line.split(":", 1) for line in MEMINFO.read_text().splitlines())
        available, total = (int(rows[name].split()[0]) * 1024 for name in ("MemAvailable", "MemTotal"))
    except (OSError, KeyError, ValueError):
        return None, None
    return available, total
