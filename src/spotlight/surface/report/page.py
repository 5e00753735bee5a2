"""The report page: verdict, key figures, curves, pictures, slots, previews, cost, audit. One self-contained file.

Invariant: every string of a run is escaped, and the page has no address that a browser would load
(tests/unit/test_report.py).
"""

import datetime
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from spotlight.control.market.prices import PriceTable
from spotlight.surface.projections import IterationView, RunView
from spotlight.surface.report.crew_section import crew_section
from spotlight.surface.report.curves import gain_sentence, interval, score_section
from spotlight.surface.report.formats import UNKNOWN, count, dollars, duration, percent, safe, score, score_name
from spotlight.surface.report.losses import learning_section
from spotlight.surface.report.markup import row, section, table
from spotlight.surface.report.money import cost_section
from spotlight.surface.report.pictures import gallery_section
from spotlight.surface.report.previews import done_of, mean_figure, preview_section
from spotlight.surface.report.slot_time import bubbles_section
from spotlight.surface.report.stale import stale_section
from spotlight.surface.report.timeline_chart import timeline_section

STYLE = Path(__file__).with_name("report.css")
MOST_ROWS = 60
"""Largest number of iterations in the table; longer runs show the first and the last."""
NO_PROMPTS: Mapping[str, str] = {}


class AuditVerdict(Protocol):
    """Outcome of an audit of the journal."""

    @property
    def clean(self) -> bool: ...

    @property
    def whole(self) -> bool: ...

    def sentences(self) -> list[str]: ...


def write_report(
    view: RunView,
    run_folder: Path,
    path: Path,
    *,
    prices: PriceTable | None = None,
    prompts: Mapping[str, str] = NO_PROMPTS,
    trained_on: int = 0,
    verdict: AuditVerdict | None = None,
) -> None:
    """Write the page.

    `prompts` has texts by prompt id, `trained_on` is the number of held-out prompts that are also trained on, `verdict`
    is the outcome of an audit, if any.
    """
    page = render(view, run_folder, prices or PriceTable.load(), prompts, trained_on, verdict)
    path.parent.mkdir(parents=True, exist_ok=True)
    # A new file ("x"), because a write to a fixed name would follow a link.
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    with partial.open("x", encoding="utf-8") as file:
        file.write(page)
    partial.replace(path)


def render(
    view: RunView,
    run_folder: Path,
    prices: PriceTable,
    prompts: Mapping[str, str],
    trained_on: int,
    verdict: AuditVerdict | None,
) -> str:
    name = safe(run_folder.resolve().name)
    sections = (
        score_section(view, trained_on),
        learning_section(view),
        gallery_section(view, run_folder, prompts),
        timeline_section(view),
        crew_section(view),
        bubbles_section(view),
        preview_section(view),
        stale_section(view),
        cost_section(view, prices),
        audit_section(view, verdict),
        iteration_section(view),
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{name} – Spotlight</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{STYLE.read_text(encoding='utf-8')}</style></head><body><main>"
        f'<header><p class="kicker">Spotlight <span>{name}</span></p><h1>{safe(verdict_sentence(view, verdict))}</h1>'
        f"{_facts(view)}</header>{_tiles(view, prices, verdict)}{''.join(sections)}"
        f"<footer>{_footer(view)}</footer></main></body></html>\n"
    )


def verdict_sentence(view: RunView, verdict: AuditVerdict | None) -> str:
    """The run in one sentence."""
    headline = view.headline()
    if headline is None:
        return (
            "The run has just started: no evaluation yet."
            if view.facts.stopped is None
            else "The run stopped before its first evaluation."
        )
    text = gain_sentence(headline, view.curve(headline))
    text = f"{text[:1].upper()}{text[1:]} in {count(len(view.iterations), 'iteration')} and {duration(view.at)}"
    taken = view.timeline.preemptions
    if taken:
        unannounced = sum(not one.noticed for one in taken)
        text += f", through {count(len(taken), 'preemption')} ({unannounced:,} without notice)"
    if verdict is not None:
        text += "; no sample was lost or trained twice" if verdict.clean else "; the audit found problems"
    if not view.gaps.whole:
        text += f", but {view.gaps.counts()[0]}"
    return f"{text}."


def _facts(view: RunView) -> str:
    facts = view.facts
    ended = "finished" if facts.finished else "failed" if facts.failed else "stopped"
    state = "running" if facts.stopped is None else ended
    parts = [f"recipe {facts.recipe or '–'}", f"seed {facts.seed}", state, f"policy version {facts.version}"]
    if facts.started_wall is not None:
        began = datetime.datetime.fromtimestamp(facts.started_wall, tz=datetime.UTC)
        parts.append(f"started {began:%Y-%m-%d %H:%M} UTC")
    if facts.attempts > 1:
        parts.append(f"resumed {count(facts.attempts - 1, 'time')}")
    reason = f"{state.capitalize()}: {facts.stopped}" if state in ("stopped", "failed") else ""
    missing = f"Missing: {'; '.join(view.gaps.counts())}." if view.gaps.exist else ""
    lines = "".join(f'<p class="reason">{safe(line)}</p>' for line in (reason, missing) if line)
    return f'{lines}<p class="facts">{" · ".join(map(safe, parts))}</p>'


def _tiles(view: RunView, prices: PriceTable, verdict: AuditVerdict | None) -> str:
    taken = view.timeline.preemptions
    unannounced = sum(not one.noticed for one in taken)
    bill = view.bill(prices)
    captured = mean_figure(view, "captured_variance")
    previews = sum(map(done_of, view.explorations.values()))
    saving = 1 - bill.dollars / bill.all_reserved if bill.all_reserved else None
    trained = view.samples.trained
    tiles = [
        _score_tile(view),
        ("Preemptions", count(len(taken)), f"{unannounced:,} without notice" if taken else "none so far"),
        ("Steps done again", percent(view.waste), f"{view.samples.redone:,} beside {view.samples.steps_done:,} kept"),
        (
            "Previews",
            count(previews),
            f"captured at most {percent(captured)} of the variance" if captured is not None else "not measured yet",
        ),
        (
            "Cost, priced as if",
            dollars(bill.dollars),
            f"{percent(saving)} below all on demand" if saving is not None else "no price known",
        ),
        ("Samples trained", count(trained), _audit_word(verdict)),
    ]
    cells = "".join(
        f"<div><dt>{safe(label)}</dt><dd>{safe(value)}</dd><dd class='note'>{safe(note)}</dd></div>"
        for label, value, note in tiles
    )
    return f'<dl class="tiles">{cells}</dl>'


def _score_tile(view: RunView) -> tuple[str, str, str]:
    headline = view.headline()
    if headline is None:
        return "Held-out score", "–", "no evaluation yet"
    curve = view.curve(headline)
    last = curve[-1][1]
    first = f"from {score(curve[0][1].value)}, " if len(curve) > 1 else ""
    return f"Held-out {score_name(headline)}", score(last.value), f"{first}95 %: {interval(last)}"


def _audit_word(verdict: AuditVerdict | None) -> str:
    if verdict is None:
        return "audit not run"
    if not verdict.clean:
        return "the audit found problems"
    return "audit clean: each exactly once" if verdict.whole else "each exactly once, but some are missing"


def audit_section(view: RunView, verdict: AuditVerdict | None) -> str:
    """Counts of rollouts and refusals, and the sentences of the audit."""
    samples = view.samples
    rollouts = samples.rollouts()
    lead = (
        "Every rollout ever issued is in one column. Late and duplicate replies are refused and counted; work of a "
        "lost machine continues from its last commit."
    )
    places = table(("rollouts issued", *rollouts), row(f"{sum(rollouts.values()):,}", *map(count, rollouts.values())))
    counts = (
        _counts("Attempts that ended early", samples.released)
        + _counts("Replies refused", samples.refused)
        + _counts("Denoising steps done again", samples.redone_by)
    )
    sentences = "".join(f"<li>{safe(sentence)}</li>" for sentence in (verdict.sentences() if verdict else ()))
    text = f'<ul class="sentences">{sentences}</ul>' if sentences else ""
    problems = "".join(f"<li>{safe(f'{duration(one.at)}, {one.source}: {one.problem}')}</li>" for one in view.problems)
    text += f'<h3>Problems on the way</h3><ul class="sentences">{problems}</ul>' if problems else ""
    return section(
        "Exactly once", lead, f'<div class="numbers">{places}</div><div class="columns">{counts}</div>{text}'
    )


def _counts(title: str, counts: Mapping[str, int]) -> str:
    rows = "".join(row(name.replace("_", " "), count(counts[name])) for name in sorted(counts) if counts[name])
    return f"<table><caption>{safe(title)}</caption><tbody>{rows or '<tr><td>none</td></tr>'}</tbody></table>"


def iteration_section(view: RunView) -> str:
    if not view.iterations:
        return ""
    shown: Sequence[IterationView] = view.iterations
    note = ""
    if len(shown) > MOST_ROWS:
        shown = [*shown[: MOST_ROWS // 2], *shown[-MOST_ROWS // 2 :]]
        note = f"The first and last {MOST_ROWS // 2} of {count(len(view.iterations), 'iteration')}. "
    heads = (
        "iteration",
        "rollout",
        "training",
        "mean reward of training groups",
        "previews",
        "captured variance, at most",
    )
    body = table(heads, "".join(_iteration_row(view, one) for one in shown))
    note += "Training groups are chosen for contrast, so their mean reward is biased: judge by the held-out score."
    return f"""<section><details class="numbers"><summary>Iterations</summary>{body}<p class="fine">{safe(note)}</p>\
</details></section>"""


def _iteration_row(view: RunView, one: IterationView) -> str:
    explored = view.explorations.get(one.iteration)
    previews = count(done_of(explored)) if explored else UNKNOWN
    captured = percent(explored.figures.get("captured_variance", math.nan)) if explored else UNKNOWN
    return row(one.iteration, duration(one.rollout_s), duration(one.train_s), score(one.reward), previews, captured)


def _footer(view: RunView) -> str:
    facts = view.facts
    return safe(f"Spotlight {facts.code} · settings {facts.config_digest} · {view.seq + 1:,} journal records")
