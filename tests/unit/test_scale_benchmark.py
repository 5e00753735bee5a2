"""The scale benchmark simulates slots whose steps are reported rarely."""

from benchmarks.scale.run import RARE, run, video_profile


def test_samples_of_twenty_minutes_between_heartbeats_of_thirty_do_not_count_as_a_stall():
    assert run(16, 1.0, video_profile(), RARE, seed=0).outcome.iterations > 0
