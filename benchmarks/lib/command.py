"""The command line that every benchmark has."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

from spotlight.core.errors import SpotlightError


def parser(name: str, description: str | None, out: Path | None = None) -> argparse.ArgumentParser:
    """A parser with --out and --json."""
    made = argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    default = f"default {out}" if out else "without it no file is written"
    made.add_argument("--out", type=Path, default=out, help=f"path of the result, without .json; {default}")
    made.add_argument("--json", action="store_true", help="end with one JSON object")
    return made


def start(name: str, main: Callable[[], None]) -> None:
    """Run main; an error of Spotlight becomes one line and its exit code."""
    try:
        main()
    except SpotlightError as error:
        print(f"{name}: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
