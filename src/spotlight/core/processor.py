"""MKL settings that make a row's bits on a CPU independent of the other rows in its batch.

Samples move between batches, slots and processes and end in the same bits
(tests/processes/test_flight_processes.py). MKL chooses its kernels by matrix size, and on Intel processors these round
differently, unless its strict mode is set; the strict mode makes products of few rows slower. MKL has the strict mode
on Intel processors only; on AMD processors its kernels round equally without it.
"""

import os
from pathlib import Path

STRICT = ("MKL_CBWR", "AUTO,STRICT")
PROCESSORS = Path("/proc/cpuinfo")
FIRST_BYTES = 4096
"""Bytes read of the processor list; its first entry names the vendor of all cores."""


def set_strict_rounding(processors: Path = PROCESSORS) -> None:
    """Set MKL's strict mode for this process and its children; a value that the user has set stays.

    MKL reads the setting at its first product.
    """
    if _is_intel(processors):
        os.environ.setdefault(*STRICT)


def _is_intel(processors: Path) -> bool:
    try:
        with processors.open("rb") as file:
            return b"GenuineIntel" in file.read(FIRST_BYTES)
    except OSError:
        return False
