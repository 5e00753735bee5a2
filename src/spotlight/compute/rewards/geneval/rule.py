"""GenEval's verdict on a picture from its detections: the published rule, and a graded form to train on.

`strict` follows the published evaluation rule by rule: include clauses are AND-ed over the most confident
objects of a class, exclude clauses bound the number of a class, positions compare box centres.
`graded` is in [0, 1] and varies with the confidences, so that a group of imperfect pictures can be ranked.
"""

import math
from collections.abc import Sequence

import numpy as np

from spotlight.compute.rewards.geneval.detection import UNKNOWN, Detection, Thresholds
from spotlight.core.errors import PromptError, suggestion
from spotlight.core.types import Clause, SceneSpec

MAX_OBJECTS = 16
DEAD_ZONE = 0.1
MIN_COMPONENT = 0.5
RELATIONS = ("left of", "right of", "above", "below")

# Graded value of a position clause whose objects are present but on the wrong side.
WRONG_SIDE = 0.2
# Graded value of an object of the wrong colour.
WRONG_COLOR = 0.4
STRAY_COST = 0.25


def check(scene: SceneSpec) -> None:
    """Raise if the metadata is invalid: no picture could be judged by it."""
    for clause in (*scene.include, *scene.exclude):
        if clause.count < 1:
            raise PromptError(
                f"The scene has {clause.count} of '{clause.class_name}' in a clause, but a clause counts at least 1 "
                "object; write at least 1, and leave a class out with an exclude of count 1."
            )
    for earlier, clause in enumerate(scene.include):
        if clause.position is not None:
            _check_position(clause, earlier)


def _check_position(clause: Clause, earlier: int) -> None:
    """A position must refer to one of the `earlier` clauses: only those are matched when it is evaluated."""
    assert clause.position is not None
    relation, reference = clause.position
    if relation not in RELATIONS:
        raise PromptError(f"GenEval has no position '{relation}': {suggestion(relation, RELATIONS)}")
    if not 0 <= reference < earlier:
        raise PromptError(
            f"The position of '{clause.class_name}' refers to include {reference}, but it may refer only to the "
            f"{earlier} before it; list the reference object first."
        )


def strict(detections: Sequence[Detection], scene: SceneSpec, thresholds: Thresholds) -> bool:
    """Whether the picture passes GenEval's rule."""
    check(scene)
    threshold = thresholds.of(scene.tag)
    groups: list[list[Detection] | None] = []
    for clause in scene.include:
        found = objects(detections, clause.class_name, threshold)[: clause.count]
        groups.append(found if _holds(clause, found, groups) else None)
    if any(group is None for group in groups):
        return False
    return all(len(objects(detections, c.class_name, threshold)) < c.count for c in scene.exclude)


def objects(detections: Sequence[Detection], class_name: str, threshold: float) -> list[Detection]:
    """The objects of one class above the threshold, most confident first, at most MAX_OBJECTS."""
    found = [d for d in detections if d.class_name == class_name and d.confidence > threshold]
    return sorted(found, key=lambda d: -d.confidence)[:MAX_OBJECTS]


def _holds(clause: Clause, found: list[Detection], groups: Sequence[list[Detection] | None]) -> bool:
    if len(found) < clause.count:
        return False
    if clause.color is not None and sum(d.color == clause.color for d in found) < clause.count:
        return False
    if clause.position is None:
        return True
    relation, reference = clause.position
    others = groups[reference]
    return others is not None and all(relation in relations(a, b) for a in found for b in others)


def offset(a: Detection, b: Detection) -> tuple[float, float]:
    """Offset of a from b, per axis in [-1, 1]: difference of the centres less the dead zone, over the distance."""
    delta = [p - q for p, q in zip(a.box.center, b.box.center, strict=True)]
    dead = [DEAD_ZONE * (p + q) for p, q in zip(a.box.extent, b.box.extent, strict=True)]
    revised = [math.copysign(max(abs(d) - z, 0.0), d) for d, z in zip(delta, dead, strict=True)]
    if all(abs(r) < 1e-3 for r in revised):
        return 0.0, 0.0
    distance = math.hypot(*delta)
    return revised[0] / distance, revised[1] / distance


def relations(a: Detection, b: Detection) -> frozenset[str]:
    """The relations of a to b; near a diagonal there may be two."""
    return frozenset(name for name in RELATIONS if _along(name, offset(a, b)) > MIN_COMPONENT)


def _along(relation: str, components: tuple[float, float]) -> float:
    """The component of an offset in the direction of the relation."""
    dx, dy = components
    return {"left of": -dx, "right of": dx, "above": -dy, "below": dy}[relation]


def graded(detections: Sequence[Detection], scene: SceneSpec, thresholds: Thresholds) -> float:
    """Graded score of the picture: mean of the clauses x positions x a penalty for stray objects.

    Order for a position: no object < one object < both on the wrong side < both askew < right.
    """
    check(scene)
    bounded = {clause.class_name for clause in scene.exclude}
    matched: list[list[Detection]] = []
    values: list[float] = []
    factor = 1.0
    for clause in scene.include:
        candidates = [d for d in detections if d.class_name == clause.class_name]
        ranked = sorted(candidates, key=lambda d: -_object_value(d, clause.color))[: clause.count]
        if clause.class_name in bounded:
            values.append(_count_value(candidates, clause))
        else:
            values.append(sum(_object_value(d, clause.color) for d in ranked) / clause.count)
        if clause.position is not None:
            relation, reference = clause.position
            factor *= WRONG_SIDE + (1 - WRONG_SIDE) * _side(relation, ranked, matched[reference])
        matched.append(ranked)
    if not values:
        return 0.0
    # A surplus of a bounded class has already lowered its count value.
    expected = {id(d) for group in matched for d in group}
    expected |= {id(d) for d in detections if d.class_name in bounded}
    stray = sum(_excess(d, thresholds.default) for d in detections if id(d) not in expected)
    return float(np.clip(factor * (sum(values) / len(values)) / (1 + STRAY_COST * stray), 0.0, 1.0))


def _object_value(detection: Detection, color: str | None) -> float:
    if color is None:
        return detection.confidence
    return detection.confidence * (WRONG_COLOR + (1 - WRONG_COLOR) * detection.colors.get(color, 0.0))


def _count_value(candidates: Sequence[Detection], clause: Clause) -> float:
    """1 at the wanted number, falling linearly with the expected number of objects on both sides."""
    expected = sum(d.confidence for d in candidates)
    hit = max(0.0, 1.0 - abs(expected - clause.count) / clause.count)
    if clause.color is None or expected == 0:
        return hit
    return hit * sum(_object_value(d, clause.color) for d in candidates) / expected


def _side(relation: str, subjects: Sequence[Detection], references: Sequence[Detection]) -> float:
    """1 where strict's rule holds, 0 on the opposite side, linear between; 0 where an object is missing."""
    if not subjects or not references:
        return 0.0
    sides = [
        min(a.confidence, b.confidence) * np.clip(_along(relation, offset(a, b)) + MIN_COMPONENT, 0.0, 1.0)
        for a in subjects
        for b in references
    ]
    return float(min(sides))


def _excess(detection: Detection, threshold: float) -> float:
    """Share of a detection that counts as an object: 0 at the threshold, 1 at certainty."""
    if detection.class_name == UNKNOWN:
        return detection.confidence
    return max(0.0, detection.confidence - threshold) / (1.0 - threshold)
