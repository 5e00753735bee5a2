"""What a worker is to a crew, and how long it holds still for its agent; free of torch, for the simulator too."""

from enum import StrEnum

BROKEN_S = 3.0
"""How long a worker holds still for its agent after a break, which answers in milliseconds or kills who hangs first."""


class Standing(StrEnum):
    ALONE = "alone"
    PREPARED = "prepared"
    MEMBER = "member"
    BROKEN = "broken"
