"""Targets on any curve: a higher target never takes less, and a reached target lies on the curve."""

from hypothesis import given
from hypothesis import strategies as st

from spotlight.surface.compare import Curve, CurvePoint, to_target

scores = st.floats(0, 1)
steps = st.tuples(st.integers(1, 10), st.floats(0.01, 5), st.floats(0.01, 50), scores)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    iteration, hours, dollars = 0, 0.0, 0.0
    points = [CurvePoint(iteration=0, hours=0.0, dollars=0.0, score=draw(scores))]
    for more, spent_h, spent_d, score in draw(st.lists(steps, min_size=1, max_size=12)):
        iteration, hours, dollars = iteration + more, hours + spent_h, dollars + spent_d
        points.append(CurvePoint(iteration=iteration, hours=hours, dollars=dollars, score=score))
    return Curve(setup="any", seed=0, score="exact", points=tuple(points))


@given(curves(), scores, scores)
def test_higher_target_never_takes_less(curve, one, other):
    low, high = sorted((one, other))
    first, second = to_target(curve, low), to_target(curve, high)
    if second is not None:
        assert first is not None
        assert first.iterations <= second.iterations + 1e-9
        assert first.hours <= second.hours + 1e-9
        assert first.dollars <= second.dollars + 1e-9


@given(curves(), scores)
def test_target_is_reached_if_and_only_if_some_evaluation_reached_it(curve, target):
    reached = to_target(curve, target)
    assert (reached is not None) == (curve.best >= target)
    if reached is not None:
        there = next(point for point in curve.points if point.score >= target)
        assert reached.hours <= there.hours + 1e-9
        earlier = [point for point in curve.points if point.iteration < there.iteration]
        assert not earlier or reached.hours >= earlier[-1].hours - 1e-9
