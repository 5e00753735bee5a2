"""How a profiled model runs; free of torch."""

from enum import StrEnum


class Speed(StrEnum):
    """Kernels of a profiled model."""

    EAGER = "eager"
    """As diffusers runs it."""
    COMPILED = "compiled"
    """Compiled blocks, as workers on a GPU run real families."""
    FP8 = "fp8"
    """Compiled blocks, and previews in fp8 (`explore.precision`)."""
