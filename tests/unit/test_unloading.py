"""Bytes of a worker's messages are stored, and references take their place."""

import pytest
from blob_stories import MemoryStore

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind
from spotlight.core.errors import Stopped
from spotlight.core.work import RequestId
from spotlight.node.unloading import PICTURES, stored_commits, stored_sample

ROLLOUT = RequestId("rollout/3/1/7")


def result(request: str, attempt: int) -> m.Result:
    return m.Result(request=RequestId(request), attempt=attempt, digest="d", steps=1)


def picture() -> bytes:
    return b"PNG"


@pytest.mark.parametrize(
    ("request_id", "stored"),
    [
        ("rollout/3/1/7", (BlobKind.PAYLOAD, b"tensors")),
        ("evaluation/3/0/7", (BlobKind.PICTURE, b"PNG")),
        (f"evaluation/3/{PICTURES}/7", None),
        ("preview/3/1/7", None),
        ("audit/3/1/7", None),
    ],
)
def test_tensors_of_rollouts_and_pictures_of_the_first_held_out_prompts_outlive_their_scores(
    request_id: str, stored: tuple[BlobKind, bytes] | None
) -> None:
    store = MemoryStore()
    ref = stored_sample(result(request_id, 1), b"tensors", picture, store)
    assert (ref and (ref.kind, store.get(ref))) == stored
    assert len(store.bytes) == (stored is not None)


def test_late_attempt_does_not_replace_the_file_of_another() -> None:
    store = MemoryStore()
    one, other = (stored_sample(result(ROLLOUT, attempt), b"tensors", picture, store) for attempt in (1, 2))
    assert one is not None
    assert other is not None
    assert one.path != other.path


def test_sample_that_its_worker_has_stored_is_not_stored_again() -> None:
    store = MemoryStore()
    ref = store.put(BlobKind.PAYLOAD, "shared", b"tensors")
    by_worker = m.Result(request=ROLLOUT, attempt=1, digest="d", steps=1, payload=ref)
    assert stored_sample(by_worker, b"", picture, store) == ref
    assert len(store.bytes) == 1


def test_commits_of_a_step_refer_to_their_stored_flights() -> None:
    store = MemoryStore()
    first, second = (m.Commit(request=RequestId(f"rollout/3/1/{seed}"), attempt=1, step=2) for seed in (7, 8))
    bare = m.HandBack(request=ROLLOUT, attempt=1, step=0)
    sent = stored_commits([(first, b"one"), (bare, b""), (second, b"two")], store)
    assert isinstance(sent, m.Commits)
    assert [(message.request, message.step) for message in sent.messages] == [
        (each.request, each.step) for each in (first, bare, second)
    ]
    assert [message.flight and store.get(message.flight) for message in sent.messages] == [b"one", None, b"two"]


def test_commits_whose_flights_find_no_space_are_not_sent(monkeypatch) -> None:
    def full(parts: object) -> list[object]:
        raise Stopped("no space left; free some")

    store = MemoryStore()
    monkeypatch.setattr(store, "append_all", full)
    sent = stored_commits([(m.Commit(request=ROLLOUT, attempt=1, step=2), b"flight")], store)
    assert sent == m.StoreFailed(problem="no space left; free some")
