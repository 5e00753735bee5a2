"""Bytes of a worker's messages are stored, and references take their place."""

import pytest
from blob_stories import MemoryStore

from spotlight.core import messages as m
from spotlight.core.blobs import BlobKind
from spotlight.core.work import RequestId
from spotlight.node.unloading import PICTURES, stored_sample

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
