"""The folder of a recorded run: settings, prompts, journal and pictures, as a run leaves them."""

from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from journal_stories import CALM, HandClock
from PIL import Image
from story_journal import GROUPS, PROMPTS, story

from spotlight.compute.data.prompts import RunPrompts
from spotlight.config import load_config
from spotlight.core.events import (
    AnyEvent,
    Crewing,
    Dropped,
    Evaluated,
    Issued,
    Leased,
    NodeJoined,
    NoticeGiven,
    NoticeWithdrawn,
    ProblemNoted,
    Reconnected,
    Record,
    RefusalReason,
    Refused,
    RunResumed,
    Worked,
    WorkerJoined,
)
from spotlight.core.journal import Journal, JournalConfig
from spotlight.core.types import NodeId, Prompt, WorkerId
from spotlight.core.work import Activity, NoticeKind, SlotClass
from spotlight.folder import RunFolder


@cache
def settings() -> dict[str, Any]:
    return load_config("words-nft", ["iterations=5", "cluster.commit_every=4"]).model_dump(mode="json")


def recorded_folder(
    path: Path,
    records: Sequence[Record],
    prompts: Iterable[Prompt] = (),
    journal: JournalConfig = CALM,
    pictures: int = 6,
) -> RunFolder:
    """Write the folder; `pictures` is the number of evaluations with pictures."""
    path.mkdir(parents=True)
    folder = RunFolder(path)
    folder.write_config(settings())
    known = tuple(prompts) or tuple(Prompt(text=text) for text in PROMPTS)
    folder.write_prompts(RunPrompts(training=(), held_out=known))
    clock = HandClock(0.0)
    with Journal.create(folder.journal, clock.now, journal) as written:
        append(written, clock, records)
    if pictures:
        (path / "images").mkdir()
    for iteration in range(pictures):
        for group in range(GROUPS):
            picture = Image.new("RGB", (96, 32), (40 * iteration, 60 * group, 90))
            picture.save(path / f"images/{iteration:04d}-{group}.png")
    return folder


def append(journal: Journal, clock: HandClock, records: Iterable[Record]) -> None:
    for record in records:
        clock.seconds = max(clock.seconds, record.at)
        journal.append(record.event)


def rough_story() -> list[Record]:
    """A run in trouble: resumed, with crews, zones, reconnections, withdrawn notices, gaps and problems; not ended."""
    records = story(iterations=4, finished=False)
    node = NodeId("spot-9.1")
    one, two = (WorkerId(f"{node}/{slot}.1") for slot in range(2))
    asked = next(record.event.requests for record in records if isinstance(record.event, Issued))
    events: list[AnyEvent] = [
        RunResumed(attempt=2, wall=1.7e9 + 100),
        NodeJoined(node=node, slot_class=SlotClass.SPOT, slots=2, zone="zone-b", price="gcp-a3-h100"),
        *(WorkerJoined(worker=each, node=node, slot_class=SlotClass.SPOT, rows=4) for each in (one, two)),
        Crewing(node=node, epoch=1, crews=((one, two),), reason="few requests wait", seconds=0.071),
        NoticeGiven(worker=one, kind=NoticeKind.ADVISORY, seconds=None),
        NoticeWithdrawn(worker=one),
        Reconnected(node=node, seconds=1.25),
        Worked(worker=one, activity=Activity.ROLLOUT, start=records[-1].at, end=records[-1].at + 3),
        Leased(request=asked[0].id, attempt=2, worker=two, step=3),
        Refused(request=asked[0].id, attempt=1, worker=one, reason=RefusalReason.FENCED),
        Dropped(request=asked[1].id, reason="the reward raised ValueError on it"),
        ProblemNoted(source="reward", problem="the endpoint is away; it is asked again in 8 s."),
        Evaluated(iteration=5, scores={}),
    ]
    at, seq = records[-1].at, len(records)
    return [*records, *(Record(seq + n, at + n, event) for n, event in enumerate(events))]
