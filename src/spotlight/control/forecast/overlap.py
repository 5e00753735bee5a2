"""How long rollouts and training of one iteration take together, by what may overlap.

G is the time in which the slots beside training draw all, T that of all training, u that of the part which the last
round completes, w the time to publish and fetch, s the share that may be stale:

    serial           G + T; with assistance everybody draws, and G is that much shorter
    generation axis  rounds complete groups, parts are trained as they come: replayed round by round
    assistance       while trainers have nothing to train they draw: drawing and all training but the last part are
                     shared by all slots
    asynchrony       stale groups are drawn while others train, publish and fetch: drawing never stops but for the
                     fetch, at least (1 - s) G + u + w; trainers have the stale groups to begin with, and take up the
                     weights that they wrote from their own memory

Invariant: neither training beside rollouts nor asynchrony makes an iteration longer
(tests/property/test_forecast_property.py); tests/storm/test_forecast_simulated.py compares all with the simulation.
"""

import msgspec

from spotlight.control.forecast.asked import Durations, Fleet, Workload
from spotlight.control.forecast.drawing import Line
from spotlight.control.forecast.training import joined_s, part_s, switches_s, train_s
from spotlight.control.pipeline.admission import most_stale
from spotlight.control.profiles import Operation


class Spans(msgspec.Struct, frozen=True):
    """Seconds of an iteration without what comes after training."""

    rollout: float
    train: float
    """That of training is left when the rollouts are in."""

    @property
    def total(self) -> float:
        return self.rollout + self.train


class Overlap:
    """One workload on one fleet; `pictures` are all that is drawn, those that are only audited included."""

    def __init__(self, work: Workload, fleet: Fleet, times: Durations, pictures: int) -> None:
        self._work = work
        self._fleet = fleet
        self._times = times
        self._pictures = pictures
        self._publish_s = times.seconds(Operation.PUBLISH)
        self._fetch_s = times.seconds(Operation.NODE_FETCH)
        self._adopt_s = times.seconds(Operation.ADOPT)

    def spans(self, previews_s: float = 0.0) -> Spans:
        """`previews_s` of the time that stale rollouts could have is taken by previews."""
        pipeline = self._work.pipeline
        if not self._fleet.beside:
            return self._serial()
        found = self._serial()
        if pipeline.gap:
            found = min(self._pipelined(), found, key=lambda spans: spans.total)
            found = min(self._assisted(), found, key=lambda spans: spans.total) if pipeline.tag else found
        if pipeline.asynchrony:
            found = self._asynchronous(found, previews_s)
        return found

    # -- one after the other -------------------------------------------------------------------------------------------

    def _serial(self) -> Spans:
        everybody = self._work.pipeline.tag or not self._fleet.beside
        team = self._fleet.everybody if everybody else self._fleet.beside
        drawing = Line(self._times, self._fleet, team, self._work.steps, self._work.passes)
        return Spans(drawing.seconds(self._pictures), train_s(self._work, self._fleet, self._times))

    # -- training beside rollouts --------------------------------------------------------------------------------------

    def _pipelined(self) -> Spans:
        """Parts as `control/pipeline/parts.py` forms them from groups that rounds complete in order."""
        work, ready = self._work, self._completions()
        now = switches_s(work, self._times)
        first = 0
        for groups in work.groups_by_update:
            left = groups
            while left:
                least = min(work.pipeline.least_groups, left)
                now = max(now, ready[first + least - 1])
                there = sum(moment <= now for moment in ready[first : first + left])
                taken = there if there == left else there // least * least
                now += self._part_s(taken)
                first, left = first + taken, left - taken
            now += joined_s(self._fleet, self._times)
        rollout = self._drawing().seconds(self._pictures)
        return Spans(rollout, max(0.0, now - rollout))

    def _assisted(self) -> Spans:
        """All slots share the drawing and the training but for the last part, which everybody waits for."""
        alone, last_s = self._drawing().seconds(self._pictures), self._last_s()
        trained_s = train_s(self._work, self._fleet, self._times)
        rollout = min(alone, self._shared_s(alone, max(0.0, trained_s - last_s)))
        begun_s = self._shared_s(self._completions()[self._least() - 1], 0.0)
        return Spans(rollout, max(last_s, begun_s + trained_s - rollout))

    # -- iterations that overlap ---------------------------------------------------------------------------------------

    def _asynchronous(self, without: Spans, previews_s: float) -> Spans:
        """`without` is the same iteration on fresh weights alone, which it never exceeds."""
        pipeline, publish_s, fetch_s = self._work.pipeline, self._publish_s, self._fetch_s
        alone = self._drawing().seconds(self._pictures)
        trained_s = train_s(self._work, self._fleet, self._times)
        share = most_stale(self._work.prompts, pipeline.stale_share) / self._work.prompts
        if pipeline.gap:
            last_s = self._last_s()
            drawn_s = alone + fetch_s + previews_s
            busy_s = trained_s + publish_s + self._adopt_s
            fresh_s = (1 - share) * alone
            if pipeline.tag:
                drawn_s = self._shared_s(drawn_s, busy_s)
                fresh_s = self._shared_s(fresh_s, 0.0)
            period = max(drawn_s, busy_s, fresh_s + last_s + publish_s + fetch_s)
        else:
            last_s = trained_s
            stale = min(share, max(0.0, trained_s + publish_s - previews_s) / alone)
            period = (1 - stale) * without.rollout + trained_s + publish_s + fetch_s
        total = min(without.total, max(last_s, period - publish_s - fetch_s))
        return Spans(total - min(last_s, total), min(last_s, total))

    # -- parts ---------------------------------------------------------------------------------------------------------

    def _drawing(self) -> Line:
        return Line(self._times, self._fleet, self._fleet.beside, self._work.steps, self._work.passes)

    def _completions(self) -> list[float]:
        """When each group is complete."""
        done = 0
        moments: list[float] = []
        for scored, pictures in self._drawing().finished(self._pictures):
            done += pictures
            while len(moments) < self._work.prompts and (len(moments) + 1) * self._work.group_size <= done:
                moments.append(scored)
        return moments

    def _last_s(self) -> float:
        """The last part: what the last round completes, if training keeps up; at least what one waits for."""
        ready = self._completions()
        groups = max(sum(moment == ready[-1] for moment in ready), self._least())
        return self._part_s(min(groups, self._work.groups_by_update[-1])) + joined_s(self._fleet, self._times)

    def _least(self) -> int:
        return min(self._work.pipeline.least_groups, self._work.groups_by_update[0])

    def _part_s(self, groups: int) -> float:
        return part_s(groups * self._work.group_size, self._work, self._fleet, self._times)

    def _shared_s(self, drawn_s: float, trained_s: float) -> float:
        """What the slots beside training and the gang have to do, by all of them."""
        beside, gang = self._fleet.beside.total, self._fleet.gang
        return (beside * drawn_s + gang * trained_s) / (beside + gang)
