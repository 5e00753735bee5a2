"""Schedules by the number of optimizer steps: the average that is evaluated, and NFT's behaviour policy."""

from dataclasses import replace

import pytest
from test_trainer import GROUPS, assert_close, experience_for, theta_of, tiny_trainer

from spotlight.compute.train.config import NftConfig, OldDecay
from spotlight.compute.train.weight_sets import WeightSet
from spotlight.compute.weights.digest import digest


def test_old_policy_under_a_ramp_lags_behind_theta_by_the_decay_of_the_steps_taken():
    """Two updates make 400 optimizer steps of 398, whatever the number of the iteration."""
    trainer = tiny_trainer(NftConfig(old_decay=OldDecay.RAMP))
    base = theta_of(trainer)
    trainer.updates.fill_(398)
    trainer.run_iteration(replace(experience_for(trainer), iteration=7), GROUPS)
    expected = {name: 0.4 * base[name] + 0.6 * value for name, value in theta_of(trainer).items()}
    assert_close(dict(trainer.sets[WeightSet.OLD]), expected, atol=5e-7)


@pytest.mark.parametrize("micro_batch", [3, 16])
def test_ema_is_counted_per_optimizer_step(micro_batch):
    """Not per micro-batch: two updates of several micro-batches each are two steps of a hand-rolled average."""
    trainer = tiny_trainer(ema_decay=0.8, ema_warmup=False, micro_batch=micro_batch)
    experience, average = experience_for(trainer), theta_of(trainer)
    for samples in ([0, 1, 2, 3], [4, 5, 6, 7]):
        trainer.update(experience, samples)
        average = {name: 0.8 * average[name] + 0.2 * value for name, value in theta_of(trainer).items()}
    assert_close(dict(trainer.sets[WeightSet.EMA]), average, atol=5e-7)
    assert digest(trainer.sets[WeightSet.EMA]) != digest(theta_of(trainer))


def test_ema_warms_up_with_the_optimizer_steps_and_leaves_theta_and_the_behaviour_policy_alone():
    """2/11, 3/12, 4/13, 5/14 of the average stay with the first four steps, however high the decay is."""
    trainer, constant = tiny_trainer(ema_decay=0.999), tiny_trainer(ema_decay=0.999, ema_warmup=False)
    experience, average = experience_for(trainer), theta_of(trainer)
    for kept in (2 / 11, 3 / 12, 4 / 13, 5 / 14):
        for each in (trainer, constant):
            each.update(experience, [0, 1, 2, 3])
        average = {name: kept * average[name] + (1 - kept) * value for name, value in theta_of(trainer).items()}
        assert_close(dict(trainer.sets[WeightSet.EMA]), average, atol=5e-7)
    for each in (trainer, constant):
        each.end_iteration()
    assert digest(theta_of(trainer)) == digest(theta_of(constant))
    assert digest(trainer.sets[WeightSet.OLD]) == digest(constant.sets[WeightSet.OLD])
    assert digest(trainer.sets[WeightSet.EMA]) != digest(constant.sets[WeightSet.EMA])
