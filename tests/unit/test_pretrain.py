"""Pretraining: data that depends on the seed alone, resuming without any change, a loss that falls."""

import numpy as np
import pytest
import torch

from spotlight.compute.pretrain.bank import PictureBank, picture, render_bank
from spotlight.compute.pretrain.config import PretrainConfig
from spotlight.compute.pretrain.pretrainer import Pretrainer, check_resumable
from spotlight.compute.weights.digest import digest
from spotlight.core.errors import ConfigError, WeightsError

CONFIG = PretrainConfig(batch=4, bank=12, warmup=2, seed=3)


@pytest.fixture(scope="module")
def bank() -> PictureBank:
    pairs = [picture("scenes", CONFIG.seed, index) for index in range(CONFIG.bank)]
    return PictureBank(np.stack([image for _, image in pairs]), tuple(prompt for prompt, _ in pairs))


def trained(bank, steps, config=CONFIG):
    trainer = Pretrainer("scenes", config, bank, "cpu")
    trainer.advance(steps)
    return trainer


def test_bank_rendered_by_processes_equals_its_pictures_one_by_one(bank):
    rendered = render_bank("scenes", CONFIG.seed, CONFIG.bank, processes=2)
    assert rendered.prompts == bank.prompts
    assert np.array_equal(rendered.images_NHWC, bank.images_NHWC)
    assert not np.array_equal(picture("scenes", CONFIG.seed + 1, 0)[1], bank.images_NHWC[0])


def test_pretraining_interrupted_and_resumed_ends_with_the_same_bits(bank, tmp_path):
    straight = trained(bank, 4)
    trained(bank, 2).save(tmp_path)
    resumed = Pretrainer("scenes", CONFIG, bank, "cpu")
    assert resumed.resume(tmp_path)
    assert resumed.step == 2
    resumed.advance(4)
    assert digest(resumed.ema) == digest(straight.ema)
    weights = resumed.adapter.transformer.state_dict()
    assert digest(weights) == digest(straight.adapter.transformer.state_dict())
    assert digest(trained(bank, 3).ema) != digest(straight.ema)


def test_resuming_with_other_settings_is_refused_and_names_them(bank, tmp_path):
    trained(bank, 1).save(tmp_path)
    other = Pretrainer("scenes", CONFIG.model_copy(update={"lr": 5e-4}), bank, "cpu")
    with pytest.raises(ConfigError, match=r"0\.0005"):
        other.resume(tmp_path)
    longer = Pretrainer("scenes", CONFIG.model_copy(update={"steps": 9}), bank, "cpu")
    assert longer.resume(tmp_path)


def test_pretraining_on_few_pictures_lowers_the_loss(bank):
    losses = []
    trainer = Pretrainer("scenes", CONFIG.model_copy(update={"batch": 12}), bank, "cpu")
    for stop in (1, 15):
        trainer.advance(stop, lambda step, loss: losses.append(loss))
    assert losses[-1] < 0.7 * losses[0]


def test_shipped_weights_are_the_ema_rounded_to_bf16(bank):
    trainer = trained(bank, 2)
    for name, tensor in trainer.ema_adapter().transformer.state_dict().items():
        assert torch.equal(tensor, trainer.ema[name].bfloat16().float())


def test_resuming_a_truncated_or_foreign_checkpoint_is_refused_before_any_work(bank, tmp_path):
    trained(bank, 1).save(tmp_path)
    assert check_resumable(tmp_path, "scenes", CONFIG) == 1
    with pytest.raises(ConfigError, match="words"):
        check_resumable(tmp_path, "words", CONFIG)
    state = tmp_path / "state.safetensors"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="1000 bytes"):
        check_resumable(tmp_path, "scenes", CONFIG)
    assert check_resumable(tmp_path / "elsewhere", "scenes", CONFIG) is None
