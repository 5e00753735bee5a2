"""`benchmarks/headline/`: the machines of each setup, and ratios against the setups that ran."""

import argparse
from pathlib import Path

from benchmarks.headline import figures as headline_results
from benchmarks.headline import run as headline
from benchmarks.headline.cells import Cell, CellPoint
from benchmarks.headline.setups import FITTED
from spotlight.sim.learning import LearningModel


def test_spot_slots_of_a_contest_are_not_given_to_setups_without_spot(tmp_path: Path) -> None:
    overrides = ["cluster.spot=24", "seed=7"]
    args = argparse.Namespace(
        family="scenes", same_batches=False, device="cpu", overrides=overrides, numerics="model", out=tmp_path
    )
    for setup, spot in (("reserved-only", 0), ("on-demand-all", 0), ("spot-no-explore", 24)):
        contest = headline.contest_of(args, "h200-qwen-image-512", headline.STEADY, setup, seed=0)
        assert contest.config(setup, 0).cluster.spot == spot


def cell(setup: str, hours: float, trace: str = "calm") -> Cell:
    points = tuple(
        CellPoint(iteration=number, hours=number * hours, reserved_hours=number * hours, spot_hours=0.0, score=number)
        for number in range(3)
    )
    return Cell(
        family="scenes", setup=setup, seed=0, profile="h200-512", profile_digest="", trace=trace, trace_digest="",
        iterations=2, losses=0, previews=0, points=points, commit="", date="", hardware="", seconds=0.0,
    )  # fmt: skip


def test_figures_are_against_the_setups_that_ran() -> None:
    cells = [cell("reserved-only", 4.0, "steady"), cell("spotlight-fixed", 1.0), cell("pipelined", 2.0)]
    names = set(headline_results.ratios_of(headline_results.races(cells, "spotlight-fixed")))
    assert {"speedup_vs_reserved_only", "speedup_vs_pipelined"} <= names
    assert not {"speedup_vs_spot_no_explore", "speedup_vs_on_demand_all"} & names
    more = [*cells, cell("spot-no-explore", 3.0)]
    assert "speedup_vs_spot_no_explore" in headline_results.ratios_of(headline_results.races(more, "spotlight-fixed"))


def test_setups_that_train_with_other_settings_share_no_real_numbers(tmp_path: Path) -> None:
    """One that computed with the numbers of another would train with the other's rate and averages."""
    args = argparse.Namespace(
        family="scenes", same_batches=False, device="cpu", overrides=[], numerics="real", out=tmp_path
    )

    def numbers(setup: str, seed: int = 1) -> str:
        contest = headline.contest_of(args, "h200-qwen-image-512", headline.STEADY, setup, seed)
        return headline.numbers_of(contest, setup, seed)

    assert numbers("reserved-only") == numbers("spot-no-explore") == numbers("on-demand")
    assert numbers("reserved-only") != numbers("spotlight-fixed") == numbers("reserved-explore")
    assert numbers("reserved-only") != numbers("reserved-only", seed=2)


def test_modelled_numbers_are_drawn_from_the_fit_of_the_settings(tmp_path: Path) -> None:
    def model_of(setup: str, seed: int = FITTED[0], **changes: object) -> LearningModel | None:
        given = {"family": "scenes", "same_batches": False, "device": "cpu", "overrides": [], "numerics": "model"}
        args = argparse.Namespace(**{**given, **changes}, out=tmp_path)
        name = headline.contest_of(args, "h200-qwen-image-512", headline.STEADY, setup, seed).learning
        return None if name is None else LearningModel.load(name)

    plain, exploring = model_of("reserved-only"), model_of("reserved-explore")
    assert plain is not None
    assert exploring is not None
    assert plain == model_of("spot-no-explore") != exploring == model_of("spotlight-fixed")
    # The real run of this seed ends at 0.666 after 80 iterations.
    assert abs(plain.mean(80.0) - 0.666) < 0.01
    # Further seeds draw from the same real ones in turn.
    assert model_of("reserved-only", FITTED[1]) != plain == model_of("reserved-only", FITTED[0] + len(FITTED))
    assert model_of("reserved-only", numerics="real") is None
    assert model_of("spotlight-fixed", same_batches=True) is None
