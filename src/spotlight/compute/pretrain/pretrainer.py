"""Flow-matching pretraining of a tiny family, resumable at any checkpoint.

Every random choice of step k derives from (seed, k): the images of the batch, their noise, timesteps and dropped
captions. An interrupted and resumed run therefore ends with the weights of an uninterrupted one
(tests/unit/test_pretrain.py).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from spotlight.compute.data.worlds import world
from spotlight.compute.evaluation import evaluate
from spotlight.compute.models.adapter import ConditionBatch
from spotlight.compute.models.families import spec_of
from spotlight.compute.models.pixels import PixelAdapter
from spotlight.compute.pretrain.bank import PictureBank
from spotlight.compute.pretrain.config import PretrainConfig
from spotlight.compute.rewards.reward_pool import RewardPool
from spotlight.compute.scores import picture_grid
from spotlight.compute.weights import files
from spotlight.core.errors import ConfigError, WeightsError
from spotlight.core.rng import Purpose, derive_key, generator
from spotlight.core.types import Sampling

EVALUATION_STEPS = 10
GRID_PICTURES, GRID_COLUMNS = 48, 6


class PretrainCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Held-out scores of the EMA weights at one step; `strict` is exact match, or GenEval's overall."""

    step: int
    strict: float | None
    graded: float
    digest: str


STATE_FILE = "state.safetensors"
SMALLEST_SIGMA = 0.05
"""Least divisor of the image error in the velocity loss; smaller sigmas would dominate the sum."""


@dataclass(frozen=True)
class _Batch:
    x0_BSC: Tensor
    noise_BSC: Tensor
    sigma_B: Tensor
    cond: ConditionBatch


class Pretrainer:
    """Owns the model, its EMA and the optimizer of one pretraining run."""

    def __init__(self, family_name: str, config: PretrainConfig, bank: PictureBank, device: str) -> None:
        self.config = config
        self.spec = spec_of(family_name)
        self.device = torch.device(device)
        torch.manual_seed(config.seed)
        self.adapter = PixelAdapter(self.spec, self.spec.build().train().to(device))
        if self.device.type == "cuda":
            # A minute of compilation for nearly twice the speed; on a CPU it costs more than it saves.
            self.adapter.transformer.compile(dynamic=False)
        self.ema = {name: tensor.clone() for name, tensor in self._weights().items()}
        self.optimizer = torch.optim.AdamW(
            self.adapter.transformer.parameters(),
            lr=config.lr,
            betas=(0.9, 0.99),
            weight_decay=0.0,
            foreach=True,
        )
        self.step = 0
        self._images = torch.from_numpy(bank.images_NHWC).to(device)
        self._cond = self.adapter.collate(self.adapter.encode(bank.prompts))
        self._null = self.adapter.collate([self.adapter.unconditional()])

    def advance(self, until: int, progress: Callable[[int, float], None] = lambda step, loss: None) -> None:
        """Train up to step `until`; `progress` receives the step and its loss every 20 steps."""
        while self.step < until:
            loss = self._one_step()
            self.step += 1
            if self.step % 20 == 0 or self.step == until:
                progress(self.step, float(loss))

    def ema_adapter(self) -> PixelAdapter:
        """Build a separate model of the EMA weights, rounded to bf16 as they are shipped."""
        transformer = self.spec.build().eval().to(self.device)
        transformer.load_state_dict({name: tensor.bfloat16().float() for name, tensor in self.ema.items()})
        return PixelAdapter(self.spec, transformer)

    def save(self, folder: Path) -> None:
        """Write everything that `resume` needs, atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {f"model.{name}": tensor for name, tensor in self._weights().items()}
        tensors |= {f"ema.{name}": tensor for name, tensor in self.ema.items()}
        for index, moments in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in moments.items()}
        scratch = folder / f"{STATE_FILE}.part"
        metadata = {"step": str(self.step), "settings": _fixed_settings(self.spec.family, self.config)}
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, scratch, metadata)
        os.replace(scratch, folder / STATE_FILE)

    def resume(self, folder: Path) -> bool:
        """Load the checkpoint in `folder`; False if there is none."""
        step = check_resumable(folder, self.spec.family, self.config)
        if step is None:
            return False
        self._load(load_file(folder / STATE_FILE, device=str(self.device)))
        self.step = step
        return True

    def _load(self, tensors: dict[str, Tensor]) -> None:
        self.adapter.transformer.load_state_dict(_with_prefix(tensors, "model."))
        self.ema = _with_prefix(tensors, "ema.")
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _with_prefix(tensors, "optimizer.").items():
            index, field = name.split(".")
            state.setdefault(int(index), {})[field] = tensor.cpu() if field == "step" else tensor
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})

    def _one_step(self) -> Tensor:
        batch = self._batch(self.step)
        x_t = (1 - batch.sigma_B[:, None, None]) * batch.x0_BSC + batch.sigma_B[:, None, None] * batch.noise_BSC
        with torch.autocast("cuda", torch.bfloat16, enabled=self.device.type == "cuda"):
            predicted = self.adapter.predict(x_t, batch.sigma_B, batch.cond, self.spec.size)
        error = (predicted.float() - batch.x0_BSC) / batch.sigma_B.clamp_min(SMALLEST_SIGMA)[:, None, None]
        loss = error.square().mean()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.adapter.transformer.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * min(1.0, (self.step + 1) / self.config.warmup)
        self.optimizer.step()
        self._update_ema()
        return loss.detach()

    def _batch(self, step: int) -> _Batch:
        rng = generator(derive_key(Purpose.DATA, self.config.seed, "batch", step))
        rows = torch.from_numpy(rng.integers(len(self._images), size=self.config.batch)).to(self.device)
        dropped = torch.from_numpy(rng.random(self.config.batch) < self.config.caption_dropout).to(self.device)
        # Noise is drawn on the device: pretraining needs repeatability on one machine, not equality across devices.
        device_rng = torch.Generator(self.device).manual_seed(int(rng.integers(2**62)))
        x0 = self.adapter.encode_images(self._images[rows])
        noise = torch.randn(x0.shape, device=self.device, generator=device_rng)
        sigma = torch.sigmoid(torch.randn(len(rows), device=self.device, generator=device_rng))
        embeds = torch.where(dropped[:, None, None], self._null.embeds, self._cond.embeds[rows])
        mask = torch.where(dropped[:, None], self._null.mask, self._cond.mask[rows])
        return _Batch(x0, noise, sigma, ConditionBatch(embeds, mask))

    @torch.no_grad()
    def _update_ema(self) -> None:
        # A long average would keep the random initial weights for too long.
        decay = min(self.config.ema_decay, (1 + self.step) / (10 + self.step))
        weights = self._weights()
        torch._foreach_lerp_(list(self.ema.values()), [weights[name] for name in self.ema], 1 - decay)

    def _weights(self) -> dict[str, Tensor]:
        return {name: tensor.detach() for name, tensor in self.adapter.transformer.state_dict().items()}


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def check_resumable(folder: Path, family: str, config: PretrainConfig) -> int | None:
    """Return the step of the checkpoint in `folder`, or None; raises ConfigError if its settings differ."""
    path = folder / STATE_FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
    except SafetensorError as error:
        raise WeightsError(
            f"the checkpoint {path} ({path.stat().st_size} bytes) cannot be read ({error}), so it is truncated; delete "
            "it to start anew."
        ) from error
    wanted = _fixed_settings(family, config)
    if metadata.get("settings") != wanted:
        raise ConfigError(
            f"{path} was made with {metadata.get('settings')} but this run has {wanted}; use the same settings to "
            "resume, or another --out to start anew."
        )
    return int(metadata["step"])


def _fixed_settings(family: str, config: PretrainConfig) -> str:
    """The settings that must not change on resume; the length of training may change."""
    free = {"steps", "until", "evaluate_every", "evaluation_prompts"}
    return f"{family} {config.model_dump_json(exclude=free)}"


def write_checkpoint(trainer: Pretrainer, folder: Path, pool: RewardPool) -> PretrainCheckpoint:
    """Save the state for resume, then the EMA weights with a grid of held-out images and their scores."""
    trainer.save(folder)
    family = trainer.spec.family
    adapter = trainer.ema_adapter()
    path = folder / f"{family}-{trainer.step:06d}.safetensors"
    weights = {name: tensor.bfloat16() for name, tensor in adapter.transformer.state_dict().items()}
    digest = files.write(path, family, weights)
    family_world = world(family)
    prompts = family_world.held_out(trainer.config.evaluation_prompts)
    sampling = Sampling(steps=EVALUATION_STEPS, size=trainer.spec.size)
    scored = evaluate(adapter, prompts, sampling, [family_world.reward], pool)
    picture_grid(scored.images[:GRID_PICTURES], GRID_COLUMNS).save(path.with_suffix(".png"))
    checkpoint = PretrainCheckpoint(
        step=trainer.step, strict=scored.strict, graded=scored.estimate().value, digest=digest
    )
    with (folder / "evaluations.jsonl").open("ab") as log:
        log.write(msgspec.json.encode(checkpoint) + b"\n")
    return checkpoint
