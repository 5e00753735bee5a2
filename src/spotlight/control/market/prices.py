"""Dated list prices: one row per kind of machine, in dollars per GPU-hour.

Invariant: a table is identified by the digest of its bytes, which every bill names (tests/unit/test_market.py).
"""

import csv
import hashlib
import io
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from spotlight.assets import asset
from spotlight.core.errors import ConfigError, suggestion
from spotlight.core.work import SlotClass

SHIPPED = "prices/list-2026-08.csv"
COLUMNS = ("name", "provider", "instance", "gpu", "gpus", "on_demand_per_hour", "spot_per_hour", "date", "source")


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price of one kind of machine on one date."""

    name: str
    provider: str
    instance: str
    gpu: str
    gpus: int
    on_demand_per_hour: float
    """Dollars per hour of the whole instance."""
    spot_per_hour: float | None
    """Median over regions; None if there is no spot offer, or no reliable figure."""
    date: str
    source: str

    def per_gpu_hour(self, slot_class: SlotClass) -> float:
        if slot_class is SlotClass.RESERVED:
            return self.on_demand_per_hour / self.gpus
        if self.spot_per_hour is None:
            raise ConfigError(
                f"'{self.name}' has no spot price, because {self.provider} sells that machine on demand only or no "
                "reliable figure exists; bill the spot nodes by another row of the price table."
            )
        return self.spot_per_hour / self.gpus


class PriceTable(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by name, with the name and digest of their file."""

    name: str
    digest: str
    rows: Mapping[str, Price]

    @classmethod
    def load(cls, path: Path | None = None) -> Self:
        """Load the table at `path`, or the shipped one."""
        path = asset(SHIPPED) if path is None else path
        if not path.is_file():
            raise ConfigError(f"the price table {path} does not exist; check the path, or leave it out.")
        content = path.read_bytes()
        digest = hashlib.blake2b(content, digest_size=8).hexdigest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise ConfigError(f"the price table {path} is not a text file ({error.reason}); check the path.") from error
        return cls(name=path.stem, digest=digest, rows=_rows(text, str(path)))

    @property
    def date(self) -> str:
        """The newest date among the rows."""
        return max(row.date for row in self.rows.values())

    @property
    def sources(self) -> list[str]:
        return sorted({row.source for row in self.rows.values()})

    def require(self, wanted: Iterable[tuple[SlotClass, str]]) -> None:
        """Raise ConfigError unless these rows price their slot classes; checked before a run starts."""
        for slot_class, name in wanted:
            self[name].per_gpu_hour(slot_class)

    def __getitem__(self, name: str) -> Price:
        if name not in self.rows:
            raise ConfigError(
                f"the price table '{self.name}' has no row '{name}', so its nodes have no price: "
                f"{suggestion(name, self.rows)}"
            )
        return self.rows[name]


def _rows(text: str, where: str) -> dict[str, Price]:
    reader = csv.DictReader(io.StringIO(text))
    if tuple(reader.fieldnames or ()) != COLUMNS:
        raise ConfigError(
            f"the price table {where} has the columns {', '.join(reader.fieldnames or ()) or '(none)'}, but a table "
            f"must have {', '.join(COLUMNS)}; write them as its first line."
        )
    rows: dict[str, Price] = {}
    for row in reader:
        price = _price(row, f"line {reader.line_num} of the price table {where}")
        if price.name in rows:
            raise ConfigError(
                f"the price table {where} has two rows '{price.name}'; a name means one price, so rename one."
            )
        rows[price.name] = price
    if not rows:
        raise ConfigError(f"the price table {where} has no rows, so nothing can be priced; add one.")
    return rows


def _price(row: Mapping[str | Any, str | Any], where: str) -> Price:
    if None in row:
        raise ConfigError(f"{where} has more than {len(COLUMNS)} fields; quote fields that contain a comma.")
    missing = [column for column in COLUMNS if not row.get(column) and column != "spot_per_hour"]
    if missing:
        raise ConfigError(f"{where} has no {missing[0]}, which every price needs; fill it in.")
    return Price(
        name=row["name"],
        provider=row["provider"],
        instance=row["instance"],
        gpu=row["gpu"],
        gpus=int(_positive(row["gpus"], "gpus", where)),
        on_demand_per_hour=_positive(row["on_demand_per_hour"], "on_demand_per_hour", where),
        spot_per_hour=_positive(row["spot_per_hour"], "spot_per_hour", where) if row["spot_per_hour"] else None,
        date=row["date"],
        source=row["source"],
    )


def _positive(text: str, column: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (0 < value < math.inf) or (column == "gpus" and value != int(value)):
        raise ConfigError(f"{where} gives {column} as '{text}', which is not a positive number; correct it.")
    return value
