"""Measured seconds per operation on some hardware, for the simulator, the plan and the planner's first estimate."""

from spotlight.control.profiles.timings import (
    Operation,
    Point,
    Profile,
    Provenance,
    Series,
    Times,
    efficient_batch,
    profile_names,
)

__all__ = ["Operation", "Point", "Profile", "Provenance", "Series", "Times", "efficient_batch", "profile_names"]
