"""The process that writes a run's base weights: `python -m spotlight.compute.models.base_writer NAME TARGET`."""

import sys
from pathlib import Path

from spotlight.assets import asset
from spotlight.compute.data.worlds import world
from spotlight.compute.models.results import check_fit, read
from spotlight.compute.models.sources import resolve
from spotlight.compute.weights import files
from spotlight.compute.weights.header import read_shapes
from spotlight.core.errors import SpotlightError


def write_base(name: str, target: Path) -> str:
    """Write the weights, whole, verified and checked against their family; return the digest."""
    source = resolve(name)
    content = read(source)
    world(content.family)
    # Compared with the shipped file: building the model would import diffusers, which takes longer than the copy.
    check_fit(content, read_shapes(asset(f"weights/{content.family}.safetensors")))
    return files.write(target, content.family, content.weights, origin=source.location)


def main() -> None:
    try:
        write_base(sys.argv[1], Path(sys.argv[2]))
    except SpotlightError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
