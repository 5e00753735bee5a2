"""Section `pipeline` of a recipe: what may overlap within an iteration; free of torch."""

from pydantic import Field

from spotlight.core.section import Section


class PipelineConfig(Section):
    """How rollouts and training share the slots and the time."""

    gap: bool = False
    """Train on complete groups while others are still rolled out; one optimizer step at the end of an update, as
    without. False trains when all rollouts are in."""
    tag: bool = True
    """Slots that train roll out while they have nothing to train on. False: they only train, as long as anybody else
    is there to roll out."""
    least_groups: int = Field(default=1, ge=1)
    """Complete groups that make a part of an update, or a multiple of them; in deterministic mode every part has just
    as many. Best is the smallest number that fills the batches of all ranks: less leaves some half empty, more begins
    to train later."""
    asynchrony: bool = False
    """The first groups of the next iteration may be rolled out with the weights of this one while it still trains, by
    slots that would have nothing to do: their samples are one version old when they are trained on, never older."""
    stale_share: float = Field(default=0.5, gt=0, le=1)
    """Share of an iteration's groups that may be so, rounded down; in deterministic mode just as many are."""
    switch_s: float = Field(default=0.0, ge=0)
    """Seconds that a slot takes to change between rolling out and training, which assistance must be worth; a
    simulation takes its profile's."""
