"""Settings of pretraining; torch-free."""

from pydantic import Field

from spotlight.core.section import Section


class PretrainConfig(Section):
    """Settings of a pretraining run; the shipped weights used the defaults except where their cards differ."""

    steps: int = Field(default=20_000, ge=1)
    """Most optimizer steps."""
    batch: int = Field(default=512, ge=1)
    lr: float = Field(default=1e-3, gt=0)
    warmup: int = Field(default=500, ge=1)
    ema_decay: float = Field(default=0.999, ge=0, lt=1)
    caption_dropout: float = Field(default=0.1, ge=0, lt=1)
    """Share of images trained without their caption, so that guidance works."""
    bank: int = Field(default=150_000, ge=1)
    """Number of images rendered before training starts."""
    seed: int = 0
    evaluate_every: int = Field(default=1000, ge=1)
    """Steps between checkpoints, each with a held-out evaluation of the EMA weights."""
    evaluation_prompts: int = Field(default=128, ge=1)
    until: float | None = None
    """Stop at the first evaluation with this strict held-out score, so that the base model leaves room to improve."""
