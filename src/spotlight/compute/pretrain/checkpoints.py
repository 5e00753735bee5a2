"""What a pretraining run leaves behind every so often: its state, its EMA weights, and how well they draw."""

from pathlib import Path

import msgspec

from spotlight.compute.data.worlds import world
from spotlight.compute.evaluation import evaluate
from spotlight.compute.held_out import picture_grid
from spotlight.compute.pretrain.pretrainer import Pretrainer
from spotlight.compute.rewards.pool import RewardPool
from spotlight.compute.weights import files
from spotlight.core.types import Sampling

EVALUATION_STEPS = 10
GRID_PICTURES, GRID_COLUMNS = 48, 6


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out scores of the EMA weights at one step; `strict` is exact match, or GenEval's overall."""

    step: int
    strict: float | None
    graded: float
    digest: str


def write_checkpoint(trainer: Pretrainer, folder: Path, pool: RewardPool) -> Checkpoint:
    """Save what resuming needs, then the EMA weights with a grid of held-out drawings and their scores."""
    trainer.save(folder)
    family = trainer.spec.family
    adapter = trainer.ema_adapter()
    path = folder / f"{family}-{trainer.step:06d}.safetensors"
    weights = {name: tensor.bfloat16() for name, tensor in adapter.transformer.state_dict().items()}
    digest = files.write(path, family, weights)
    shown = world(family)
    prompts = shown.held_out(trainer.config.evaluation_prompts)
    sampling = Sampling(steps=EVALUATION_STEPS, size=trainer.spec.size)
    scored = evaluate(adapter, prompts, sampling, [shown.reward], pool)
    picture_grid(scored.images[:GRID_PICTURES], GRID_COLUMNS).save(path.with_suffix(".png"))
    checkpoint = Checkpoint(step=trainer.step, strict=scored.strict, graded=scored.estimate().value, digest=digest)
    with (folder / "evaluations.jsonl").open("ab") as log:
        log.write(msgspec.json.encode(checkpoint) + b"\n")
    return checkpoint
