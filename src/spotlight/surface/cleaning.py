"""What `spotlight clean` deletes: everything that neither the record of a run nor its resume needs.

It keeps settings, prompts, own base weights, journal, report, the last checkpoint, the newest published weights (which
export and evaluate read), exports and files of trackers. Of a run that may be resumed it also keeps the samples and
weights that no checkpoint covers: without them finished work would be done again, or could not be.
Invariant: a cleaned run resumes as one that was not cleaned (tests/processes/test_api_run.py).
"""

import shutil
from collections.abc import Collection, Iterator
from pathlib import Path

import msgspec

from spotlight.control.run_state import RunState
from spotlight.core.errors import InputError, suggestion
from spotlight.core.journal import read
from spotlight.core.run_files import CHECKPOINTS, EMBEDDINGS, WEIGHTS
from spotlight.core.work import Policy
from spotlight.folder import RunFolder

WHOLE_FOLDERS = {
    "flights": "parts of unfinished samples, which a resume makes anew",
    EMBEDDINGS: "encoded prompts, which a resume encodes anew",
    "store": "copies of weights of nodes that are gone",
    "images": "pictures of evaluations; the report has some",
    "logs": "output of processes",
}
"""Folders that are deleted as they are, with what they hold."""
PAYLOADS = "payloads"
KEEPABLE = ("images", "logs")


class Removal(msgspec.Struct, frozen=True):
    """A file or folder to delete."""

    path: str
    """Relative to the run's folder."""
    size: int
    """Bytes."""
    what: str


class CleanPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What is deleted of a run."""

    run: str
    removals: list[Removal]

    @property
    def size(self) -> int:
        return sum(removal.size for removal in self.removals)


def plan_clean(folder: RunFolder, keep: Collection[str] = ()) -> CleanPlan:
    """Find what can be deleted; `keep` names folders to leave, of `KEEPABLE`."""
    unknown = [name for name in keep if name not in KEEPABLE]
    if unknown:
        raise InputError(f"--keep does not know '{unknown[0]}': {suggestion(unknown[0], KEEPABLE)}")
    # A link would direct the deletion elsewhere.
    folder.check_no_links()
    state = RunState.replay(record.event for record in read(folder.journal))
    updates = _updates_per_iteration(folder)
    checkpoint = state.checkpoint
    covered = checkpoint.step // updates if checkpoint is not None else 0
    found: list[tuple[Path, str]] = [
        (folder.path / name, what) for name, what in WHOLE_FOLDERS.items() if name not in keep
    ]
    found += _checkpoints(folder, None if checkpoint is None else checkpoint.path)
    found += _payloads(folder, None if state.finished else covered)
    found += _weights(folder, None if state.finished else covered)
    removals = [Removal(str(path.relative_to(folder.path)), _size(path), what) for path, what in found if path.exists()]
    return CleanPlan(run=str(folder.path), removals=[each for each in removals if each.size])


def clean(folder: RunFolder, plan: CleanPlan) -> None:
    """Delete what the plan names."""
    for removal in plan.removals:
        path = folder.path / removal.path
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _updates_per_iteration(folder: RunFolder) -> int:
    found = folder.read_config().get("train", {}).get("updates_per_iteration")
    if type(found) is not int or found < 1:
        raise InputError(
            f"train.updates_per_iteration in {folder.config} is {found!r} instead of a number of 1 or more, so it is "
            "unknown which samples the checkpoint covers, and nothing was deleted; put the run's own settings back."
        )
    return found


def _checkpoints(folder: RunFolder, newest: str | None) -> Iterator[tuple[Path, str]]:
    """All but the one that a resume starts from; without one there, none is deleted."""
    kept = None if newest is None else folder.path / newest
    if kept is not None and kept.exists():
        for path in sorted((folder.path / CHECKPOINTS).iterdir()):
            if path != kept:
                yield path, "a checkpoint before the last, or an unfinished one"


def _payloads(folder: RunFolder, covered: int | None) -> Iterator[tuple[Path, str]]:
    """Tensors of samples; of a run that is not finished those that a checkpoint covers."""
    for path in sorted((folder.path / PAYLOADS).glob("*")):
        if covered is None or (path.name.isdecimal() and int(path.name) < covered):
            yield path, "tensors of samples that were trained on"


def _weights(folder: RunFolder, covered: int | None) -> Iterator[tuple[Path, str]]:
    """Published weights but the newest of each policy; of a run that is not finished, those before the checkpoint.

    Samples of the checkpoint's iteration may be one version older.
    """
    for policy in Policy:
        found = {
            int(version): path
            for path in (folder.path / WEIGHTS).glob(f"{policy.value}-*.safetensors")
            if (version := path.stem.rpartition("-")[2]).isdecimal()
        }
        for number, path in sorted(found.items()):
            if number < max(found) and (covered is None or number < covered - 1):
                yield path, "published weights that later ones replace"
    for path in sorted((folder.path / WEIGHTS).glob("*.gone")):
        yield path, "published weights that later ones replace"


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
