"""How long operations take on some hardware: read by the simulator, the plan and the planner's first guess."""

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
