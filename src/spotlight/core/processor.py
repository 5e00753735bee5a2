"""On a CPU, too, what becomes of a row must not depend on the rows beside it.

Samples move between batches, slots and processes and end in the same bits wherever they do
(tests/processes/test_flight_processes.py). MKL chooses its kernels by the size of a matrix, and on Intel's processors
those round differently, unless it is told to be strict, which makes products of few rows slower. MKL offers it on
those processors alone; on AMD's its kernels were seen to round alike without.
"""

import os
from pathlib import Path

STRICT = ("MKL_CBWR", "AUTO,STRICT")
PROCESSORS = Path("/proc/cpuinfo")
FIRST_BYTES = 4096
"""Of a list that is long where cores are many: the first says who made all of them."""


def round_alike(processors: Path = PROCESSORS) -> None:
    """For this process and those that it starts; MKL reads it at its first product, and who has set it is right."""
    if _is_of_intel(processors):
        os.environ.setdefault(*STRICT)


def _is_of_intel(processors: Path) -> bool:
    try:
        with processors.open("rb") as file:
            return b"GenuineIntel" in file.read(FIRST_BYTES)
    except OSError:
        return False
