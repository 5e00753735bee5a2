"""The spans that a simulated worker reports."""

from spotlight.core.work import Activity
from spotlight.sim.sim_spans import SimSpans


def reported(spans: SimSpans, now: float) -> list[tuple[str, float, float]]:
    return [(span.activity.value, now - span.start, now - span.end) for span in spans.take(now)]


def test_spans_that_touch_are_one_and_those_of_no_length_are_none():
    spans = SimSpans()
    spans.worked(Activity.ROLLOUT, 0, 2)
    spans.worked(Activity.SWITCH, 2, 2)
    spans.worked(Activity.ROLLOUT, 2, 5)
    spans.worked(Activity.ROLLOUT, 6, 8)
    assert reported(spans, 10) == [("rollout", 0, 5), ("rollout", 6, 8)]
    assert reported(spans, 11) == []


def test_change_of_role_comes_before_training():
    spans = SimSpans()
    spans.trained(10, 20, 1)
    assert reported(spans, 20) == [("switch", 10, 11), ("train", 11, 20)]


def test_training_without_a_change_of_role_is_training_alone():
    spans = SimSpans()
    spans.trained(10, 20, 0)
    assert reported(spans, 20) == [("train", 10, 20)]


def test_change_of_role_never_exceeds_what_an_order_took():
    spans = SimSpans()
    spans.trained(10, 12, 3)
    assert reported(spans, 12) == [("switch", 10, 12)]
