"""Previews or rollouts: how much of the training window is best previewed where the rest of it is not lost.

With one-step asynchrony, slots that have previewed all that was planned begin the next iteration's rollouts. A second
of previews then costs a second of rollouts, as far as these may be stale; what it buys are iterations, since groups of
twice the variance are worth about two (measured with NFT: 2.4 times fewer iterations at 2.4 times the variance on
`words-large`, 1.6 at 1.8 on `scenes`, docs/results/explore.json). A stale sample counts as a fresh one. So the seconds
of an iteration per unit of progress are

    (window + rollouts - min(window - x, share * rollouts)) / gain(x)

with x seconds of previews. Up to window - share * rollouts previews are free; beyond that the knee is where a further
second gains less than it costs. Invariants (tests/property/test_knee_property.py): within the window, never less than
what is free, no choice of the grid is better, and all of the window where nothing may be stale.
"""

from collections.abc import Callable

PARTS = 16
"""Of the window, beyond what is free: the value is flat around the knee, so more would tell nothing."""


def knee(window_s: float, rollout_s: float, share: float, gain: Callable[[float], float]) -> float:
    """Seconds of previews; `gain` tells what so many seconds promise, 1 for none."""
    free_s = max(0.0, window_s - share * rollout_s)
    choices = [free_s + (window_s - free_s) * part / PARTS for part in range(PARTS + 1)]
    # Of equals the longest: previews that cost nothing.
    return min(reversed(choices), key=lambda seconds: seconds_per_gain(seconds, window_s, rollout_s, share, gain))


def seconds_per_gain(
    preview_s: float, window_s: float, rollout_s: float, share: float, gain: Callable[[float], float]
) -> float:
    """Of an iteration in which so long is previewed."""
    ahead_s = min(window_s - preview_s, share * rollout_s)
    return (window_s + rollout_s - ahead_s) / gain(preview_s)
