"""Parts of a timeline: they add up to its spans, in one row and over many, also while spans grow."""

import numpy as np
import pytest
from story_journal import story

from spotlight.core.work import Activity
from spotlight.surface.projections import RunView
from spotlight.surface.timeline_bins import SpanIndex, between, edges_of


def by_hand(rows, activity: Activity, start: float, end: float) -> float:
    spans = [span for row in rows for span in row.spans if span.activity is activity]
    return sum(max(0.0, min(span.end, end) - max(span.start, start)) for span in spans)


@pytest.mark.parametrize(("start", "end", "bins"), [(0.0, 84.0, 7), (13.7, 22.2, 40), (60.0, 400.0, 5)])
def test_parts_of_any_range_equal_the_spans_inside_it(start, end, bins):
    view = RunView.of(story())
    edges = edges_of(start, end, bins)
    for rows in ([view.timeline.rows["spot-1/0"]], view.timeline.ordered()):
        seconds = SpanIndex(rows).seconds(edges)
        for activity in (Activity.ROLLOUT, Activity.TRAIN, Activity.PREVIEW):
            parts = seconds.get(activity, np.zeros(bins))
            wanted = [by_hand(rows, activity, edges[n], edges[n + 1]) for n in range(bins)]
            assert parts == pytest.approx(wanted, abs=1e-6)


def test_index_that_follows_a_live_run_equals_one_of_the_whole_run():
    records, view = story(), RunView()
    index = None
    for record in records:
        view.apply(record)
        if view.timeline.rows and index is None and len(view.timeline.rows) == 4:
            index = SpanIndex(view.timeline.ordered())
        if index is not None and record.seq % 7 == 0:
            index.update()
    assert index is not None
    index.update()
    edges = edges_of(0.0, view.at, 33)
    whole = SpanIndex(RunView.of(records).timeline.ordered())
    for activity, parts in whole.seconds(edges).items():
        assert index.seconds(edges)[activity] == pytest.approx(parts)
    assert index.held(edges, view.at) == pytest.approx(whole.held(edges, view.at))


def test_intervals_that_overlap_count_several_times():
    assert between([0.0, 1.0], [4.0, 3.0], edges_of(0.0, 4.0, 4)) == pytest.approx([1.0, 2.0, 2.0, 1.0])
    assert between([], [], edges_of(0.0, 1.0, 2)) == pytest.approx([0.0, 0.0])


def test_sums_of_a_row_are_those_of_its_spans():
    for row in RunView.of(story(iterations=12)).timeline.ordered():
        for activity, seconds in row.seconds.items():
            assert seconds == pytest.approx(by_hand([row], activity, 0.0, 1e9))
