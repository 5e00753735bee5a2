"""A run as Prometheus metrics: the text format, rendered from the view; no dependency.

`spotlight train --metrics-port` serves it while the run lives, `spotlight dashboard` for the recent runs of a folder.
Values are those of `spotlight status`. launch/monitoring has a Grafana board and alert rules over these names, and
tests/unit/test_metrics.py checks that every name that they use exists.
"""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from spotlight.control.market.prices import PriceTable
from spotlight.core.errors import InputError
from spotlight.core.events import SAMPLES
from spotlight.core.segments import list_segments
from spotlight.core.work import SlotClass
from spotlight.folder import RunFolder
from spotlight.presence import read_beat
from spotlight.surface.kept_view import latest
from spotlight.surface.liveness import RunStanding, State, standing_of
from spotlight.surface.plain_text import plain
from spotlight.surface.projections import RunView
from spotlight.surface.timeline import TimelineState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
LABEL_LENGTH = 200
RECENT_S = 3600.0
"""A page of several runs shows one for this long after its last record, so that its end is seen."""


class MetricKind(NamedTuple):
    """Type and description of a metric."""

    type: str
    help: str


METRICS: Mapping[str, MetricKind] = {
    "spotlight_run_info": MetricKind("gauge", "Always 1; recipe, seed and version of a run in its labels."),
    "spotlight_run_state": MetricKind("gauge", "1 for the present state of a run, 0 for the others."),
    "spotlight_run_seconds": MetricKind("gauge", "Seconds since the run first started, without pauses."),
    "spotlight_last_progress_seconds": MetricKind("gauge", "Seconds since the last result, step or evaluation."),
    "spotlight_iterations": MetricKind("gauge", "Finished iterations."),
    "spotlight_iterations_planned": MetricKind("gauge", "Iterations of the whole run."),
    "spotlight_policy_version": MetricKind("gauge", "Newest published policy."),
    "spotlight_held_out_score": MetricKind("gauge", "Newest held-out score."),
    "spotlight_held_out_score_low": MetricKind("gauge", "Lower bound of its 95 % interval."),
    "spotlight_held_out_score_high": MetricKind("gauge", "Upper bound of its 95 % interval."),
    "spotlight_training_reward": MetricKind("gauge", "Mean reward of the newest iteration's training groups."),
    "spotlight_iteration_rollout_seconds": MetricKind("gauge", "Rollout phase of the newest iteration."),
    "spotlight_iteration_train_seconds": MetricKind("gauge", "Training after its last rollout."),
    "spotlight_iteration_samples": MetricKind("gauge", "Scored samples of the newest iteration."),
    "spotlight_flat_group_share": MetricKind("gauge", "Share of its groups whose samples all have one reward."),
    "spotlight_slots": MetricKind("gauge", "Slots by class and what they do now."),
    "spotlight_spot_nodes_wanted": MetricKind("gauge", "Spot nodes that the recipe names."),
    "spotlight_rollouts": MetricKind("gauge", "Rollouts by state; each is in one."),
    "spotlight_denoising_steps_total": MetricKind("counter", "Denoising steps done."),
    "spotlight_denoising_steps_redone_total": MetricKind("counter", "Denoising steps done again after a loss."),
    "spotlight_preemptions_total": MetricKind("counter", "Lost spot machines, with and without notice."),
    "spotlight_restarts_total": MetricKind("counter", "Resumes of the run."),
    "spotlight_groups_skipped_total": MetricKind("counter", "Prompt groups without enough samples to train on."),
    "spotlight_cost_dollars": MetricKind("gauge", "Dollars so far, priced as if."),
    "spotlight_cost_all_on_demand_dollars": MetricKind("gauge", "The same slots, all on demand."),
    "spotlight_budget_dollars": MetricKind("gauge", "budget.max_dollars; absent without one."),
    "spotlight_budget_seconds": MetricKind("gauge", "budget.max_hours in seconds; absent without one."),
    "spotlight_slot_seconds_total": MetricKind("counter", "Slot seconds by class and activity."),
}
"""All metrics, in the order of the page."""


class Measured(NamedTuple):
    """One line of the page."""

    name: str
    labels: Mapping[str, str]
    value: float


class MetricSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run that metrics show."""

    iterations: int
    prompts: int
    """Groups per iteration."""
    spot_nodes: int
    max_dollars: float | None
    max_hours: float | None

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> "MetricSettings":
        """From the stored settings of a run."""
        budget = config.get("budget", {})
        found = {
            "iterations": config["iterations"],
            "prompts": config["rollout"]["prompts"],
            "spot_nodes": config["cluster"]["spot"],
            "max_dollars": budget.get("max_dollars"),
            "max_hours": budget.get("max_hours"),
        }
        return msgspec.convert(found, cls)


def measure(
    run: str, view: RunView, standing: RunStanding, settings: MetricSettings, prices: PriceTable
) -> Iterator[Measured]:
    """All values of a run; a value that does not exist yet is left out."""
    for name, labels, value in (
        *_progress(view, standing, settings),
        *_scores(view, settings),
        *_slots(view, settings),
        *_samples(view),
        *_money(view, settings, prices),
    ):
        if value is not None and math.isfinite(value):
            yield Measured(name, {"run": run, **labels}, value)


def measure_recent(folders: Iterable[RunFolder], prices: PriceTable) -> Iterator[Measured]:
    """Values of the runs that are live or were so within `RECENT_S`; a folder that is not a whole run has none."""
    for folder in folders:
        if not _is_recent(folder):
            continue
        try:
            view = latest(folder.journal)
            settings = MetricSettings.of(folder.read_config())
        except (InputError, KeyError, msgspec.ValidationError):
            continue
        yield from measure(folder.name, view, standing_of(view, folder.path), settings, prices)


def _is_recent(folder: RunFolder) -> bool:
    beat = read_beat(folder.path)
    if beat is not None and beat.is_alive:
        return True
    segments = list_segments(folder.journal)
    return bool(segments) and time.time() - segments[-1].stat().st_mtime < RECENT_S


def render(values: Iterable[Measured]) -> str:
    """The text format; values of one name stay together, whatever their order."""
    by_name: dict[str, list[Measured]] = {}
    for each in values:
        by_name.setdefault(each.name, []).append(each)
    lines = []
    for name, kind in METRICS.items():
        if name in by_name:
            lines += [f"# HELP {name} {kind.help}", f"# TYPE {name} {kind.type}"]
            # A scrape with one series twice is refused as a whole; names that are cut may become equal.
            series = {_labels(each.labels): _number(each.value) for each in by_name[name]}
            lines += [f"{name}{labels} {value}" for labels, value in series.items()]
    return "\n".join(lines) + "\n"


Row = tuple[str, Mapping[str, str], float | None]


def _progress(view: RunView, standing: RunStanding, settings: MetricSettings) -> Sequence[Row]:
    facts = view.facts
    about = {"recipe": facts.recipe, "seed": str(facts.seed), "code": facts.code}
    return (
        ("spotlight_run_info", about, 1.0),
        *(("spotlight_run_state", {"state": state.value}, float(state is standing.state)) for state in State),
        ("spotlight_run_seconds", {}, view.at),
        ("spotlight_last_progress_seconds", {}, standing.last_progress_s),
        ("spotlight_iterations", {}, len(view.iterations)),
        ("spotlight_iterations_planned", {}, settings.iterations),
        ("spotlight_policy_version", {}, facts.version),
    )


def _scores(view: RunView, settings: MetricSettings) -> Iterator[Row]:
    if view.evaluations:
        for name, interval in view.evaluations[-1].scores.items():
            yield "spotlight_held_out_score", {"score": name}, interval.value
            yield "spotlight_held_out_score_low", {"score": name}, interval.low
            yield "spotlight_held_out_score_high", {"score": name}, interval.high
    if view.iterations:
        last = view.iterations[-1]
        yield "spotlight_training_reward", {}, last.reward
        yield "spotlight_iteration_rollout_seconds", {}, last.rollout_s
        yield "spotlight_iteration_train_seconds", {}, last.train_s
        yield "spotlight_iteration_samples", {}, last.figures.get(SAMPLES)
        flat = last.figures.get("flat_groups")
        yield "spotlight_flat_group_share", {}, None if flat is None else flat / settings.prompts


def _slots(view: RunView, settings: MetricSettings) -> Iterator[Row]:
    line = view.timeline
    states = [(row.slot_class, line.state(row)) for row in line.ordered()]
    for slot_class in SlotClass:
        for state in TimelineState:
            found = states.count((slot_class, state))
            yield "spotlight_slots", {"slot_class": slot_class.value, "state": state.value}, found
    yield "spotlight_spot_nodes_wanted", {}, settings.spot_nodes


def _samples(view: RunView) -> Iterator[Row]:
    for state, count in view.samples.rollouts().items():
        yield "spotlight_rollouts", {"state": state}, count
    yield "spotlight_denoising_steps_total", {}, view.samples.steps_done
    yield "spotlight_denoising_steps_redone_total", {}, view.samples.redone
    noticed = sum(taken.noticed for taken in view.timeline.preemptions)
    yield "spotlight_preemptions_total", {"noticed": "true"}, noticed
    yield "spotlight_preemptions_total", {"noticed": "false"}, len(view.timeline.preemptions) - noticed
    yield "spotlight_restarts_total", {}, len(view.timeline.restarts)
    yield "spotlight_groups_skipped_total", {}, sum(view.gaps.skipped.values())


def _money(view: RunView, settings: MetricSettings, prices: PriceTable) -> Iterator[Row]:
    bill = view.bill(prices)
    yield "spotlight_cost_dollars", {}, bill.dollars
    yield "spotlight_cost_all_on_demand_dollars", {}, bill.all_reserved
    yield "spotlight_budget_dollars", {}, settings.max_dollars
    yield "spotlight_budget_seconds", {}, None if settings.max_hours is None else 3600 * settings.max_hours
    for slot_class in SlotClass:
        for activity, seconds in bill.seconds(slot_class).items():
            yield "spotlight_slot_seconds_total", {"slot_class": slot_class.value, "activity": activity.value}, seconds


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    """A label value on one line: control characters are made visible first, so only these two need an escape."""
    return plain(value, LABEL_LENGTH).replace("\\", "\\\\").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))
