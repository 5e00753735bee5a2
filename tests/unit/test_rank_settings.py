"""Settings of several training ranks: what is refused, with which sentence."""

import pytest

from spotlight.compute.train.config import Parallel, TrainConfig
from spotlight.config import load_config
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


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            ("train.parallel=sharded", "pipeline.tag=false"),
            "train.parallel is sharded but cluster.gang_elastic is true",
        ),
        (("cluster.gang_port=29500",), "cluster.gang_port is 29500 but cluster.gang_elastic is true with 4 ranks"),
        (("train.sequence_ranks=2",), "train.sequence_ranks is 2 but cluster.gang_elastic is true"),
        (("deterministic=true", "explore.plan=fixed"), "deterministic is on but cluster.gang_elastic is true"),
    ],
)
def test_settings_that_an_elastic_gang_cannot_have_are_refused(settings, sentence):
    elastic = ("cluster.slots=4", "cluster.gang=4", "cluster.gang_elastic=true")
    with pytest.raises(ConfigError, match=sentence):
        load_config("words-nft", [*elastic, *settings])
    load_config("words-nft", [*elastic])
