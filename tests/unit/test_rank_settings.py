"""Settings of several training ranks: what is refused, with which sentence."""

import pytest

from spotlight.compute.train.config import Parallel, TrainConfig
from spotlight.core.errors import ConfigError


@pytest.mark.parametrize(
    ("settings", "ranks", "sentence"),
    [
        ({"sequence_ranks": 3}, 4, r"sequence_ranks is 3 but 4 ranks train, .*set train.sequence_ranks to a divisor"),
        ({"sequence_ranks": 2, "parallel": "sharded"}, 2, "parallel is sharded and train.sequence_ranks is 2"),
        ({"parallel": "sharded", "micro_batch": "auto"}, 2, "micro_batch is auto and train.parallel is sharded"),
        ({"sequence_ranks": 2, "micro_batch": "auto"}, 2, "micro_batch is auto and train.sequence_ranks is 2"),
    ],
)
def test_settings_that_ranks_cannot_have_are_refused(settings, ranks, sentence):
    with pytest.raises(ConfigError, match=sentence):
        TrainConfig.model_validate(settings).check_ranks(ranks, roll_out=False)


@pytest.mark.parametrize("settings", [{}, {"micro_batch": "auto"}, {"parallel": "sharded"}, {"sequence_ranks": 2}])
def test_other_settings_are_accepted(settings):
    TrainConfig.model_validate(settings).check_ranks(4, roll_out=False)


def test_auto_replicates_the_model():
    assert TrainConfig().resolved_parallel is Parallel.REPLICATED
