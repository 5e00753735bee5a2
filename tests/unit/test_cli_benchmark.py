"""`python -m benchmarks.cli` on a run of two iterations: its figures are ratios of real processes."""

from benchmarks.cli.run import measure


def test_ratios_are_of_whole_processes_of_one_round():
    figures, settings = measure(iterations=2, rounds=1)
    seconds = {name: figures[f"{name}_s"].value for name in ("imports", "help", "status")}
    assert all(value > 0 for value in seconds.values())
    assert figures["help_vs_imports"].value == seconds["help"] / seconds["imports"]
    assert figures["status_vs_help"].value == seconds["status"] / seconds["help"]
    assert settings["iterations"] == 2
