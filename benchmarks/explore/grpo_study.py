"""Settings of the study of exploration with Flow-GRPO, fixed before its runs; each is a `--variant`.

Previews rank initial noise, but Flow-GRPO is credited for the noise of its window. Here whole trajectories are drawn,
several times as many as are trained on, and the most contrasting finished ones are kept (arm `oversample`). The arm
`whole` draws as many and trains on all of them: the same rollout budget without selection.
"""

from typing import NamedTuple


class GrpoVariant(NamedTuple):
    """Settings of all arms, and the number of trajectories that a group is chosen from."""

    changes: tuple[str, ...]
    drawn: int | None = None
    """None: four times the group."""


SHARED = "rollout.initial_noise=shared"
EARLY, LATE = "rollout.window_range=[0, 6]", "rollout.window_range=[6, 9]"
VARIANTS = {
    "early-shared": GrpoVariant((SHARED, EARLY)),
    "late-shared": GrpoVariant((SHARED, LATE)),
    "4-of-32": GrpoVariant((SHARED, EARLY, "rollout.group_size=4"), 32),
    "4-of-32-late": GrpoVariant((SHARED, LATE, "rollout.group_size=4"), 32),
}
"""Windows in the first or the last steps of ten, one initial noise per group; the recipe's group, or 4 kept of 32."""
