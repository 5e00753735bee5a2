"""How long a team takes to draw pictures: rounds of as many rows as a slot holds, scored while the next is drawn.

Invariant: more slots never take longer for as many pictures (tests/property/test_forecast_property.py).
"""

import math
from collections.abc import Iterator

import msgspec

from spotlight.control.forecast.asked import Durations, Fleet, Team
from spotlight.control.profiles import Operation


class Line(msgspec.Struct, frozen=True):
    """Slots that draw pictures of one kind together."""

    times: Durations
    fleet: Fleet
    team: Team
    steps: int
    passes: int
    step: Operation = Operation.DENOISE_STEP

    def seconds(self, pictures: int) -> float:
        """Until the last of so many pictures is scored."""
        return max((scored for scored, _ in self.finished(pictures)), default=0.0)

    def finished(self, pictures: int) -> list[tuple[float, int]]:
        """When a round of every slot of one speed is scored, and how many pictures it has, in that order."""
        kinds = [(count, speed) for count, speed in self._kinds() if count]
        alone = [kinds[:1], kinds[1:]] if len(kinds) > 1 else []
        # Slots that are too slow to be of use are left out, as the scheduler refuses them their share.
        ways = [sorted(self._rounds(pictures, way)) for way in (kinds, *alone)]
        return min(ways, key=lambda way: way[-1][0] if way else 0.0)

    def fits(self, window_s: float, most: int) -> int:
        """Pictures that are scored within the window, at most `most`."""
        low, high = 0, most if self.team else 0
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.seconds(middle) <= window_s else (low, middle - 1)
        return low

    def _kinds(self) -> list[tuple[int, float]]:
        team = self.team
        if team.speed == 1.0:
            return [(team.plain + team.others, 1.0)]
        return [(team.plain, 1.0), (team.others, team.speed)]

    def _rounds(self, pictures: int, kinds: list[tuple[int, float]]) -> Iterator[tuple[float, int]]:
        total = sum(count * speed for count, speed in kinds)
        for count, speed in kinds:
            share = shared(pictures, count) if len(kinds) == 1 else math.ceil(pictures * speed / total)
            rounds, rest = divmod(share, self.fleet.rows)
            drawn = scored = 0.0
            for rows in (*[self.fleet.rows] * rounds, *([rest] if rest else ())):
                drawn += self._drawn_s(rows) / speed
                scored = max(drawn, scored) + self._scored_s(rows)
                yield scored, rows * count

    def _drawn_s(self, rows: int) -> float:
        step_s = self.times.seconds(self.step, batch=rows * self.passes)
        return self.steps * step_s + self.times.seconds(Operation.DECODE, batch=rows)

    def _scored_s(self, rows: int) -> float:
        """The slots of a node finish a round together, and its reward processes take the pictures one by one."""
        return shared(rows * self.fleet.slots, self.fleet.scorers) * self.times.seconds(Operation.REWARD)


def shared(count: int, takers: int) -> int:
    """The largest of even shares."""
    return -(-count // takers)
