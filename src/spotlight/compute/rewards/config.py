"""Section `reward` of a recipe; free of torch."""

from pydantic import Field

from spotlight.core.section import Section


class RewardConfig(Section):
    """What is rewarded, who else judges it, and how many processes score."""

    name: str | None = None
    """A reward's name or package.module:function; None takes the family's own."""
    judge: str | None = None
    """A second judge that is only reported; None takes the family's own."""
    processes: int = Field(default=2, ge=1)
    """Reward processes, one thread each."""
