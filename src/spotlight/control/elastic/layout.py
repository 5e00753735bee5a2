"""Layout: which workers of a node should share their samples now, from slots, waiting work and speed-ups.

Slots with runnable work of their own stay alone: data parallelism loses nothing. Only slots that would be idle become
followers, of the leaders where they add most; among equals, of those with most work left. So a busy slot leads, and the
survivors of 4 slots become 3, 2+1 or 1+1+1 by queue and table. `value` is maximised: expected throughput in slots, less
a small price per follower, which ends the growth of a crew where another slot adds little.

Invariants (tests/property/test_layout_property.py): every slot is in exactly one crew; degrees are legal; no request
waits for a slot that is idle or follows; a slot with a notice is alone; the value is near the best over all partitions;
equal inputs give equal layouts.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from spotlight.control.elastic.config import ElasticConfig, MixedGpus
from spotlight.control.elastic.distrust import Pair
from spotlight.control.elastic.efficiency import Efficiency
from spotlight.control.elastic.formation import Layout
from spotlight.core.types import WorkerId
from spotlight.core.work import WeightsId

MARGIN = 0.05
"""Share of the value that an unforced change must gain: more than measurements jitter."""
PRESSING_GAIN = 0.02
FRESH_STEPS = 30
"""Assumed remaining steps of a waiting request; only the order of leaders depends on it."""
EPSILON = 1e-9
FEW = 5
"""Largest number of slots whose partitions are all evaluated: 52 for five, in a few milliseconds."""
SPEED_GRAIN = 0.1
"""Relative speeds within this grain count as equal when members are ordered, so that jitter reorders none."""


@dataclass(frozen=True, slots=True)
class RowView:
    """A sample in flight."""

    remaining: int
    """Remaining steps."""
    tokens: int
    weights: WeightsId


@dataclass(frozen=True, slots=True)
class SlotView:
    """A live worker that may roll out. A node is one zone, so the zone makes no difference here."""

    worker: WorkerId
    kind: str = ""
    """Kind of its GPU."""
    speed: float = 1.0
    """Speed relative to the other slots."""
    rows: tuple[RowView, ...] = ()
    holds: frozenset[WeightsId] = frozenset()
    notice: float | None = None
    """Deadline of an imminent notice."""

    @property
    def in_flight(self) -> frozenset[WeightsId]:
        """Weights that its followers must hold to resume."""
        return frozenset(row.weights for row in self.rows)

    @property
    def needs(self) -> frozenset[WeightsId]:
        """Weights that followers must hold to begin: all of an idle leader's, as its next sample may use any."""
        return self.in_flight or self.holds

    @property
    def work_left(self) -> int:
        return sum(row.remaining * row.tokens for row in self.rows)

    @property
    def tokens(self) -> int:
        """Image tokens of its largest sample."""
        return max(row.tokens for row in self.rows)

    @property
    def pace(self) -> int:
        return round(self.speed / SPEED_GRAIN)


@dataclass(frozen=True, slots=True)
class Waiting:
    """Waiting requests that this node may expect."""

    tokens: tuple[int, ...] = ()
    """Image tokens of each request."""
    pressing: bool = False
    """Whether the run waits for the last sample: a validation, a deadline."""

    @classmethod
    def of(cls, counts: Sequence[tuple[int, int]], pressing: bool = False) -> "Waiting":
        """From (tokens, requests) as in `Demand`."""
        return cls(tuple(tokens for tokens, count in counts for _ in range(count)), pressing)


@dataclass(frozen=True, slots=True)
class Situation:
    """All inputs of a layout."""

    slots: tuple[SlotView, ...]
    waiting: Waiting
    heads: int
    apart: tuple[Pair, ...] = ()
    """Pairs that failed together recently."""


@dataclass(frozen=True, slots=True)
class Decision:
    layout: Layout
    reason: str
    """A sentence for people."""
    changed_at: float
    """Time of the last change of layout; an input of the next decision."""


class LayoutPlanner:
    """Chooses layouts for one node by one config and table; keeps no state between calls."""

    def __init__(self, config: ElasticConfig, efficiency: Efficiency) -> None:
        self._config = config
        self._efficiency = efficiency

    def decide(self, situation: Situation, last: Decision | None, now: float) -> Decision:
        """Keep the last layout while it is possible and good; change it at once where it is not possible."""
        if last is not None and not last.layout and not situation.slots:
            return last
        best = self.choose(situation, last.layout if last is not None else ())
        if last is not None and self.fits(last.layout, situation):
            kept, best_value = self.value(last.layout, situation), self.value(best, situation)
            too_soon = now - last.changed_at < self._config.hysteresis_s
            if too_soon or best_value - kept <= MARGIN * max(kept, 1.0) or _same(best, last.layout):
                return last
        changed = last is None or not _same(best, last.layout)
        changed_at = now if last is None or changed else last.changed_at
        return Decision(best, self._reason(best, situation), changed_at)

    def choose(self, situation: Situation, current: Layout = ()) -> Layout:
        """The best layout found; of equal ones, the one closest to the current.

        Giving spares where they pay most is optimal where slots are alike. Where they differ in speed or kind it may
        not be, so for a few slots every partition is evaluated too.
        """
        ranked = _by_preference(situation, current)
        found = self._grow(_leaders(situation, ranked), situation, current)
        alike = len({(slot.kind, slot.pace, slot.holds) for slot in ranked}) <= 1 and not situation.apart
        if alike or len(ranked) > FEW:
            return found
        alone = tuple((slot.worker,) for slot in situation.slots if slot.notice is not None)
        layouts = [tuple(sorted(crews + alone)) for crews in _partitions(tuple(slot.worker for slot in ranked))]
        fitting = [layout for layout in layouts if self.fits(layout, situation) and _share_weights(layout, situation)]
        return max([found, *fitting], key=lambda layout: round(self.value(layout, situation), 9))

    def _grow(self, crews: list["_Crew"], situation: Situation, current: Layout) -> Layout:
        """Give spare slots to these leaders, one growth at a time, the one that pays most first."""
        leading = {crew.leader.worker for crew in crews}
        spares = [slot for slot in situation.slots if slot.notice is None and slot.worker not in leading]
        followed = {follower: members[0] for members in current for follower in members[1:]}
        while growths := list(self._growths(crews, spares, situation, followed)):
            growth = max(growths, key=lambda each: each.rank)
            growth.crew.members += growth.added
            spares = [slot for slot in spares if slot not in growth.added]
        alone = [slot for slot in situation.slots if slot.notice is not None] + spares
        layout = [tuple(slot.worker for slot in crew.members) for crew in crews]
        return tuple(sorted(layout + [(slot.worker,) for slot in alone]))

    def _growths(
        self, crews: list["_Crew"], spares: list[SlotView], situation: Situation, followed: dict[WorkerId, WorkerId]
    ) -> Iterator["_Growth"]:
        """Every way for one crew to grow that pays, each with the spares that suit that crew best."""
        price = self._price(situation)
        for number, crew in enumerate(crews):
            suiting = self._suiting(crew, spares, situation, followed)
            before = self._rate(crew.members, crew.tokens)
            for degree in self._degrees(situation):
                added = suiting[: degree - len(crew.members)]
                if degree <= len(crew.members) or degree > len(crew.members) + len(suiting):
                    continue
                after = self._rate([*crew.members, *added], crew.tokens)
                gain = after - before - price * sum(slot.speed for slot in added)
                if gain > EPSILON:
                    yield _Growth(crew, added, (round(gain / len(added), 9), crew.work_left, -number, degree))

    def _suiting(
        self, crew: "_Crew", spares: list[SlotView], situation: Situation, followed: dict[WorkerId, WorkerId]
    ) -> list[SlotView]:
        """Spares that may all join: the fastest first, of equal ones current followers."""
        chosen: list[SlotView] = []
        leader = crew.leader
        for slot in sorted(
            spares,
            key=lambda slot: (-slot.pace, followed.get(slot.worker) != leader.worker, slot.worker),
        ):
            together = [*crew.members, *chosen]
            if leader.needs <= slot.holds and self._mix([*together, slot], situation):
                chosen.append(slot)
        return chosen

    # -- the model -----------------------------------------------------------------------------------------------------

    def value(self, layout: Layout, situation: Situation) -> float:
        """Expected throughput of a layout that fits, in slots of speed 1, less the price of followers."""
        slots = {slot.worker: slot for slot in situation.slots}
        price = self._price(situation)
        total = 0.0
        idle: list[list[SlotView]] = []
        for names in layout:
            members = [slots[name] for name in names]
            if members[0].rows:
                total += self._rate(members, members[0].tokens) - price * sum(slot.speed for slot in members[1:])
            elif members[0].notice is None:
                idle.append(members)
        waiting = sorted(situation.waiting.tokens, reverse=True)[: len(idle)]
        idle.sort(key=lambda members: -self._rate(members, waiting[0] if waiting else 1))
        for members, tokens in zip(idle, waiting, strict=False):
            total += self._rate(members, tokens) - price * sum(slot.speed for slot in members[1:])
        return total

    def fits(self, layout: Layout, situation: Situation) -> bool:
        """Whether it is possible now: every slot once, legal degrees, followers free, with the weights and mixable."""
        slots = {slot.worker: slot for slot in situation.slots}
        if sorted(name for members in layout for name in members) != sorted(slots):
            return False
        for names in layout:
            leader, *followers = (slots[name] for name in names)
            if len(names) not in self._degrees(situation) or not self._mix([leader, *followers], situation):
                return False
            if any(slot.rows or not leader.in_flight <= slot.holds for slot in followers):
                return False
            if followers and any(slot.notice is not None for slot in (leader, *followers)):
                return False
        return True

    def _rate(self, members: Sequence[SlotView], tokens: int) -> float:
        """Speed of a crew; its slowest member sets the pace."""
        return min(slot.speed for slot in members) * self._efficiency.speed_up(tokens, len(members))

    def _price(self, situation: Situation) -> float:
        return min(self._config.gain, PRESSING_GAIN) if situation.waiting.pressing else self._config.gain

    def _degrees(self, situation: Situation) -> tuple[int, ...]:
        return self._config.legal_degrees(situation.heads, len(situation.slots))

    def _mix(self, members: Sequence[SlotView], situation: Situation) -> bool:
        """Whether these may be one crew, by their kinds and earlier failures."""
        if self._config.mixed_gpus is MixedGpus.REFUSE and len({slot.kind for slot in members}) > 1:
            return False
        pairs = combinations(sorted(slot.worker for slot in members), 2)
        return not any(pair in situation.apart for pair in pairs)

    def _reason(self, layout: Layout, situation: Situation) -> str:
        slots = {slot.worker: slot for slot in situation.slots}
        degrees = "+".join(str(degree) for degree in sorted((len(members) for members in layout), reverse=True))
        busy = sum(1 for slot in situation.slots if slot.rows)
        notes = [f"{degrees or 'no slots'}: {busy} of {len(slots)} slots busy, {len(situation.waiting.tokens)} waiting"]
        notes += ["a sample is urgent"] if situation.waiting.pressing else []
        for members in layout:
            slowest = min((slots[name] for name in members), key=lambda slot: (slot.pace, slot.speed, slot.worker))
            if len({slots[name].kind for name in members}) > 1:
                notes.append(f"{slowest.worker} ({slowest.kind}) is the slowest of {members[0]}'s crew")
        return "; ".join(notes)


@dataclass(slots=True)
class _Crew:
    """A crew that grows while a layout is chosen."""

    members: list[SlotView]
    tokens: int
    work_left: int

    @property
    def leader(self) -> SlotView:
        return self.members[0]


@dataclass(frozen=True, slots=True)
class _Growth:
    crew: _Crew
    added: list[SlotView]
    rank: tuple[float, int, int, int]
    """Gain per slot; work left; earlier crews and larger growths first among equals."""


def _by_preference(situation: Situation, current: Layout) -> list[SlotView]:
    """Slots without a notice in the order in which they should lead: busy, fast, leading already."""
    led = {members[0] for members in current}
    return sorted(
        (slot for slot in situation.slots if slot.notice is None),
        key=lambda slot: (not slot.rows, -slot.pace, slot.worker not in led, slot.worker),
    )


def _leaders(situation: Situation, ranked: list[SlotView]) -> list[_Crew]:
    """A crew for every busy slot, and one idle slot per waiting request, the largest requests first."""
    crews = [_Crew([slot], slot.tokens, slot.work_left) for slot in ranked if slot.rows]
    idle = [slot for slot in ranked if not slot.rows]
    waiting = sorted(situation.waiting.tokens, reverse=True)
    fresh = [_Crew([slot], tokens, tokens * FRESH_STEPS) for slot, tokens in zip(idle, waiting, strict=False)]
    return sorted(crews + fresh, key=lambda crew: (-crew.work_left, crew.leader.worker))


def _share_weights(layout: Layout, situation: Situation) -> bool:
    slots = {slot.worker: slot for slot in situation.slots}
    return all(slots[crew[0]].needs <= slots[name].holds for crew in layout for name in crew[1:])


def _partitions(names: tuple[WorkerId, ...]) -> Iterator[Layout]:
    """All partitions; within a crew the order stays."""
    if not names:
        yield ()
        return
    first = names[0]
    for rest in _partitions(names[1:]):
        yield ((first,), *rest)
        for place, crew in enumerate(rest):
            yield (*rest[:place], (first, *crew), *rest[place + 1 :])


def _same(one: Layout, other: Layout) -> bool:
    return sorted(one) == sorted(other)
