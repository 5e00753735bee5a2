"""The folder of a run as its training worker leaves it, made in this process; the training is a random step."""

import shutil
from dataclasses import dataclass
from pathlib import Path

import torch

from spotlight.compute.models import families
from spotlight.compute.models.sources import is_shipped
from spotlight.compute.train.role import TrainingRole
from spotlight.compute.train.trainer import Trainer
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.config import load_config
from spotlight.core import messages as m
from spotlight.core.types import Version
from spotlight.core.work import Policy, WeightsId
from spotlight.folder import RunFolder

LORA = ("train.lora.rank=2", "train.lora.alpha=6")
STEP = "checkpoints/step_000002"


@dataclass(frozen=True)
class MadeRun:
    folder: RunFolder
    trainer: Trainer

    @property
    def average(self) -> Path:
        return self.folder.path / "weights" / "average-1.safetensors"

    @property
    def behaviour(self) -> Path:
        return self.folder.path / "weights" / "behaviour-1.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.folder.path / STEP


def made_run(path: Path, *settings: str, base: str = "words") -> MadeRun:
    """With averaged and behaviour weights of version 1, which differ, and a checkpoint of the same moment."""
    folder = RunFolder(path)
    path.mkdir(parents=True)
    (path / "journal").mkdir()
    if not is_shipped(base):
        shutil.copy(base, folder.base)
        base = str(folder.base)
    config = load_config("words-nft", [f"model.name={base}", *settings])
    folder.write_config(config.model_dump(mode="json"))
    content = families.read_weights(base)
    adapter = families.build(content)
    trainer = Trainer(adapter, config.train, config.algorithm, run_seed=1)
    draw = torch.Generator().manual_seed(1)
    for which in (WeightSet.EMA, WeightSet.OLD):
        for tensor in trainer.sets[which].values():
            tensor.add_(0.02 * torch.randn(tensor.shape, generator=draw))
    role = TrainingRole(trainer, adapter, content.digest, path, send=lambda message: None)
    for policy in Policy:
        role.obey(m.Publish(weights=(WeightsId(Version(1), policy),)))
    role.obey(m.Save(step=2, path=STEP))
    role.settle()
    return MadeRun(folder, trainer)
