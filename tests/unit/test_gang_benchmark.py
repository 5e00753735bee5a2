"""The benchmark of training ranks: its figures follow from the timings of real and simulated runs."""

from benchmarks.gang.run import case_of, summed_up
from benchmarks.lib.local_runs import Timing
from spotlight.config import load_config
from spotlight.control.profiles import Profile


def timing(iteration: float, train: float) -> Timing:
    return Timing(iterations=(iteration,) * 3, rollout=iteration - train, train=train, losses=0)


def test_errors_are_of_the_prediction_and_speedups_of_two_ranks_over_one():
    one, two = (timing(4.0, 2.0), timing(4.2, 2.1)), (timing(2.5, 1.25), timing(2.0, 1.0))
    found = summed_up([[one, two]])
    assert round(found["error_1_rank"].value, 6) == 5.0
    assert round(found["error_2_ranks"].value, 6) == -20.0
    assert found["speedup"].value == 1.6
    assert found["train_speedup"].value == 1.6
    assert found["predicted_speedup"].value == 2.1


def test_both_kinds_of_runs_differ_in_their_ranks_alone(tmp_path):
    import yaml

    profile, configs = Profile.load("cpu-words"), []
    for ranks in (1, 2):
        path = tmp_path / f"{ranks}.yaml"
        path.write_text(yaml.safe_dump(dict(case_of(profile, ranks, 3, 0).settings)))
        configs.append(load_config(f"words-nft+{path}"))
    assert [config.cluster.gang for config in configs] == [1, 2]
    one, two = (config.model_dump() for config in configs)
    for settings in (one, two):
        settings["cluster"] = {name: value for name, value in settings["cluster"].items() if name != "gang"}
        settings["cluster"].pop("slots")
    assert one == two
