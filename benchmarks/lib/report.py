"""The report of a benchmark: a table of its figures, OUT.json, and with --json one JSON object as the last line."""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.table import Table

from benchmarks.lib.figures import Figure
from benchmarks.lib.provenance import Provenance, provenance

WIDTH = 150
"""Width of tables in a file or a pipe."""
GROUPED = 1000
"""Values at or above this are shown without decimals."""


def summary_of(
    name: str, figures: Mapping[str, Figure], seeds: Iterable[int], stamp: Provenance | None = None, **facts: Any
) -> dict[str, Any]:
    """The object that --json prints; `stamp` is the provenance of earlier runs."""
    content = {"benchmark": name, **(stamp or provenance()), "seeds": list(seeds), **facts, "figures": figures}
    return dict(msgspec.to_builtins(content))


def publish(
    summary: Mapping[str, Any], out: Path | None, as_json: bool, table: RenderableType | None = None, **details: Any
) -> None:
    """Print the table and write OUT.json; the details are only in the file."""
    Console(width=None if sys.stdout.isatty() else WIDTH).print(table or table_of(summary))
    if out is not None:
        path = out.with_suffix(".json")
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {**summary, **msgspec.to_builtins(details, str_keys=True)}
        path.write_text(json.dumps(content, indent=1) + "\n")
        Console(stderr=True).print(f"figures: {path}", soft_wrap=True)
    if as_json:
        print(json.dumps(summary))


def table_of(summary: Mapping[str, Any]) -> Table:
    table = Table(title=f"{summary['benchmark']}: {summary['hardware']}, {summary['commit']}")
    table.add_column("figure", no_wrap=True)
    for column in ("value", "low", "high"):
        table.add_column(column, justify="right")
    table.add_column("unit")
    for name, figure in summary["figures"].items():
        table.add_row(name, *(shown(figure[part]) for part in ("value", "low", "high")), figure["unit"])
    return table


def shown(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= GROUPED else f"{value:.4g}"
