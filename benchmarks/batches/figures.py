"""Hours of `reserved-only` to its final score over each variant's hours to that score."""

import json
from pathlib import Path

import msgspec

from benchmarks.batches.run import PROFILE, TRACE
from benchmarks.batches.variants import OWN, VARIANTS
from benchmarks.headline import cells
from benchmarks.headline.cells import Cell
from benchmarks.headline.figures import PRICED, Race, figure, speedup
from benchmarks.headline.setups import BASELINE
from benchmarks.lib.figures import Figure
from benchmarks.lib.report import publish, summary_of
from spotlight.control.market.prices import PriceTable

EARLIER = "over an earlier run of the baseline"


def present(folder: Path, onto: Path | None, out: Path, as_json: bool) -> None:
    """Print and write the figures of the folder's cells, and those of an earlier result without cells."""
    earlier = json.loads(onto.read_text()) if onto else {"computed": [], "seeds": [], "figures": {}}
    kept = {name: _marked(one) for name, one in msgspec.convert(earlier["figures"], dict[str, Figure]).items()}
    found = [cells.read(path) for path in sorted(folder.glob("*/*.json"))]
    computed = sorted({*earlier["computed"], *(f"{cell.commit} on {cell.hardware}" for cell in found)})
    seeds = sorted({*earlier["seeds"], *(cell.seed for cell in found)})
    publish(summary_of("batches", kept | figures_of(folder), seeds, computed=computed), out, as_json)


def _marked(earlier: Figure) -> Figure:
    """The figure with a unit that names the earlier run of the baseline, which newer figures need not match."""
    unit = earlier.unit if EARLIER in earlier.unit else f"{earlier.unit}; {EARLIER}"
    return msgspec.structs.replace(earlier, unit=unit)


def figures_of(folder: Path) -> dict[str, Figure]:
    price = PriceTable.load(None).rows[PRICED]
    figures = {}
    for family, variants in VARIANTS.items():
        own = {cell.seed: cell for cell in _cells(folder / OWN, family)}
        for name, (setup, _) in variants.items():
            found = {cell.seed: cell for cell in _cells(folder / name, family) if cell.seed in own}
            races = [
                Race(name, family, PROFILE, TRACE, seed, {BASELINE: own[seed], name: cell})
                for seed, cell in sorted(found.items())
            ]
            for share in (0.5, 1.0):
                if races and name != OWN:
                    seeds = " and ".join(str(race.seed) for race in races)
                    key = f"{family} {name}" + ("" if share == 1 else " at 50 %")
                    ratios = (speedup(race, BASELINE, share, price) for race in races)
                    figures[key] = figure(ratios, f"times, {setup}, seeds {seeds}")
    return figures


def _cells(folder: Path, family: str) -> list[Cell]:
    return [cells.read(path) for path in sorted(folder.glob(f"{family}-*.json"))]
