"""Section `pipeline` of a recipe: what may overlap within an iteration; free of torch."""

from pydantic import Field

from spotlight.core.section import Section


class PipelineConfig(Section):
    """Overlap of rollouts and training."""

    gap: bool = False
    """Train on complete groups while others are rolled out; one optimizer step per update either way. False trains
    when all rollouts are in."""
    tag: bool = True
    """Training slots roll out while they have nothing to train on. False: they only train while any other slot can roll
    out."""
    least_groups: int = Field(default=1, ge=1)
    """Complete groups per part of an update, or a multiple of them; in deterministic mode exactly this number. Best is
    the smallest number that fills the batches of all ranks: fewer leave some half empty, more begin to train later."""
    asynchrony: bool = False
    """The first groups of the next iteration may be rolled out with the weights of this one while it trains, by slots
    that would be idle: their samples are one version old when they are trained on, never older."""
    stale_share: float = Field(default=0.5, gt=0, le=1)
    """Largest share of an iteration's groups that may be stale, rounded down; in deterministic mode always reached."""
    switch_s: float = Field(default=0.0, ge=0)
    """Seconds that a slot takes to change between rolling out and training, which assistance must outweigh; a
    simulation uses its profile's."""
