"""Figures of optimizer steps: kept as they were reported, without those of steps that were undone."""

import math

from spotlight.core.events import Restored, StepCommitted
from spotlight.core.types import Frontier
from spotlight.surface.panels.chart import binned
from spotlight.surface.training_figures import TrainingView


def step(number: int, **figures: float) -> StepCommitted:
    return StepCommitted(
        step=number, iteration=number, update=0, requests=(), frontier=Frontier(number), digest="d", figures=figures
    )


def view(*events: StepCommitted | Restored) -> TrainingView:
    folded = TrainingView()
    for event in events:
        folded.apply(event)
    return folded


def test_figures_of_undone_steps_are_replaced_by_those_of_the_later_ones():
    seen = view(
        step(0, loss=1.0), step(1, loss=9.0), step(2, loss=9.0), Restored(step=1, reason="died"), step(1, loss=2.0)
    )
    assert seen.curve("loss") == [(0, 1.0), (1, 2.0)]


def test_curve_has_finite_values_and_a_figure_that_is_never_more_than_0_has_none():
    seen = view(step(0, loss=1.0, kl=0.0, rows=7.0), step(1, loss=math.nan, kl=0.0), step(2, loss=-1.0, grad_norm=3.0))
    assert seen.curve("loss") == [(0, 1.0), (2, -1.0)]
    assert seen.curve("kl") == []
    assert seen.curve("grad_norm") == [(2, 3.0)]
    assert seen.curve("rows") == []


def test_long_curve_is_drawn_by_means_of_neighbours():
    curve = [(number, float(number % 2)) for number in range(1000)]
    drawn = binned(curve, 100)
    assert len(drawn) == 100
    assert {value for _, value in drawn} == {0.5}
    assert binned(curve[:50], 100) == curve[:50]
