"""Checkpoints of a gang: written by all ranks, restored by any number of them."""

import json
from collections.abc import Iterator

import pytest
from gang_processes import GangRanks
from ordered_gang import Gang

from spotlight.core import messages as m

SAVE = m.Save(step=2, path="checkpoints/step_2")
SAVED = m.Saved(step=2, path="checkpoints/step_2")


@pytest.fixture(scope="module")
def ranks() -> Iterator[GangRanks]:
    started = GangRanks(3)
    yield started
    started.end()


@pytest.mark.parametrize("more", [{}, {"lora": {"rank": 2, "alpha": 4.0}}], ids=["full", "lora"])
def test_checkpoint_of_two_ranks_resumes_at_one_and_at_three_with_the_same_bits(ranks, more, tmp_path):
    gang = Gang(ranks, tmp_path / "run", **more)
    gang.build([0, 1])
    gang.form([0, 1])
    for step in range(2):
        gang.train([0, 1], step)
    (wanted,) = gang.weights([0])
    ranks.all([0, 1], "taken_messages")
    assert ranks.all([0, 1], "obey", SAVE) == [None, None]
    gang.train([0, 1], 2)
    (later,) = gang.weights([0])
    sent = ranks.all([0, 1], "taken_messages")
    awaits = m.AwaitsRanks(step=2, part=0)
    assert sorted(map(str, sent[0])) == sorted(map(str, [awaits, SAVED]))
    assert sent[1] == [awaits]
    folder = gang.folder / SAVE.path
    assert sorted(path.name for path in folder.iterdir()) == [
        "00000.safetensors", "00001.safetensors", "checkpoint.json"
    ]  # fmt: skip
    sizes = [path.stat().st_size for path in sorted(folder.glob("*.safetensors"))]
    assert max(sizes) < 1.3 * min(sizes), "the bytes are divided"
    index = json.loads((folder / "checkpoint.json").read_bytes())
    assert all(len(entry["pieces"]) == 1 for entry in index["tensors"].values()), "each tensor is written once"

    for members in ([2], [0, 1, 2]):
        gang.build(members)
        gang.form(members)
        replies = ranks.all(members, "obey", m.Restore(step=2, path=SAVE.path))
        assert replies == [m.Saved(step=2, path=SAVE.path, restored=True)] * len(members)
        assert gang.weights(members) == [wanted] * len(members)
    gang.build([0, 1])
    gang.form([0, 1])
    ranks.all([0, 1], "obey", m.Restore(step=2, path=SAVE.path))
    gang.train([0, 1], 2)
    assert gang.weights([0, 1]) == [later] * 2


def test_checkpoint_whose_writer_dies_is_abandoned_and_its_rests_are_removed_by_the_next(tmp_path):
    ranks = GangRanks(3)
    try:
        gang = Gang(ranks, tmp_path / "run")
        gang.build([0, 1, 2])
        gang.form([0, 1])
        ranks.call(0, "obey", m.Save(step=0, path="checkpoints/step_0"))
        ranks.kill(1)
        gang.form([0, 2])
        assert ranks.call(0, "taken_messages") == [], "neither saved nor failed"
        assert not (gang.folder / "checkpoints/step_0").exists()
        (gang.folder / "checkpoints" / "step_9.5-abc-0.part").mkdir()
        ranks.all([0, 2], "obey", m.Save(step=0, path="checkpoints/step_0"))
        assert ranks.all([0, 2], "taken_messages") == [[m.Saved(step=0, path="checkpoints/step_0")], []]
        assert [path.name for path in (gang.folder / "checkpoints").iterdir()] == ["step_0"]
    finally:
        ranks.end()
