"""A run's memory plan as a table, in GiB."""

from typing import TYPE_CHECKING

from spotlight.compute.memory.memory_plan import LINES, gib
from spotlight.preflight.memory_check import RunMemory

if TYPE_CHECKING:
    from rich.console import Console

EMPTY = "-"


def memory_rows(memory: RunMemory) -> list[tuple[str, ...]]:
    """Header, one row per line of any plan, and totals; a column per kind of process."""
    plans = memory.plans
    names = [name for name in LINES if any(plan.of(name) for plan in plans)]
    rows = [("GiB", *(plan.process for plan in plans))]
    rows += [(name, *(gib(plan.of(name)) if plan.of(name) else EMPTY for plan in plans)) for name in names]
    return [*rows, ("total", *(gib(plan.total) for plan in plans))]


def show(memory: RunMemory, title: str, console: "Console") -> None:
    """Print the table with the choices made from it."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    header, *rows = memory_rows(memory)
    console.print(f"{title}: peak memory per process", highlight=False, soft_wrap=True)
    table = Table(box=SIMPLE_HEAD)
    table.add_column(header[0])
    for name in header[1:]:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(memory.sentences()[-1], highlight=False, soft_wrap=True)
    if memory.encoder is not None:
        note = "The text encoder runs in a process of its own, which ends before the workers start."
        console.print(note, highlight=False, soft_wrap=True)
