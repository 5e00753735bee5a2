"""Names of the activities of a slot, in the order of legends and tables."""

from spotlight.core.work import Activity

LABELS = {
    Activity.TRAIN: "train",
    Activity.ROLLOUT: "roll out",
    Activity.ASSIST: "help to roll out",
    Activity.PREVIEW: "preview",
    Activity.EVALUATION: "evaluate",
    Activity.PUBLISH: "write weights",
    Activity.LOAD: "load weights",
    Activity.SWITCH: "change role",
    Activity.REGROUP: "regroup",
    Activity.LOST: "lost work",
    Activity.START: "start",
    Activity.IDLE: "idle",
}
METERED = (Activity.REGROUP, Activity.LOST)
"""Activities known as sums only, not as spans: only the bill shows them."""
SPANNED: tuple[Activity, ...] = tuple(one for one in LABELS if one not in (Activity.IDLE, *METERED))
"""Activities that a timeline shows as spans."""
