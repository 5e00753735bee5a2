"""Result files of single runs: written, read back, checked, and joined by seed."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from benchmarks.lib.provenance import Provenance
from spotlight.core.errors import InputError

WITHOUT_EFFECT = {"seed", "reward.processes"}
"""Settings in which runs of one experiment may differ."""
ALIKE = {("model.compile", "auto"): False}
"""Values that mean another one here: small models are compiled only on request."""


class Seeded(Protocol):
    @property
    def seed(self) -> int: ...


class Run(Seeded, Protocol):
    @property
    def commit(self) -> str: ...
    @property
    def date(self) -> str: ...
    @property
    def hardware(self) -> str: ...


SeededT = TypeVar("SeededT", bound=Seeded)
StructT = TypeVar("StructT", bound=msgspec.Struct)


def write(path: Path, result: msgspec.Struct) -> None:
    """Write atomically: a file that exists is whole."""
    scratch = path.with_name(f"{path.name}.new")
    scratch.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n")
    scratch.replace(path)


def read(path: Path, kind: type[StructT], benchmark: str) -> StructT:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(
            f"{path} is not the result of a run of benchmarks.{benchmark} ({error}); pass files that it wrote."
        ) from error


def stamp_of(runs: Sequence[Run]) -> Provenance:
    """All commits; date and hardware of the first."""
    commits = sorted({run.commit for run in runs})
    return Provenance(commit=", ".join(commits), date=runs[0].date, hardware=runs[0].hardware)


def by_seed(earlier: Iterable[SeededT], found: Iterable[SeededT]) -> list[SeededT]:
    """All runs by seed; `found` replaces `earlier`."""
    runs = {run.seed: run for run in (*earlier, *found)}
    return [runs[seed] for seed in sorted(runs)]


def differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Dotted names of the settings that differ, except for those without effect on the outcome."""
    a, b = _flat(one), _flat(other)
    names = sorted(name for name in {*a, *b} if a.get(name) != b.get(name))
    return [name for name in names if name not in WITHOUT_EFFECT]


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        flat |= _flat(value, f"{name}.") if isinstance(value, dict) else {name: ALIKE.get((name, str(value)), value)}
    return flat


def check_same_settings(path: Path, have: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """A finished run replaces a new one only if it was made with the same settings."""
    changed = differences(have, wanted)
    if changed:
        raise InputError(
            f"{path} was made with other settings ({', '.join(changed)}), so it is not this run's result; choose "
            "another --out, or delete it to run again."
        )


def check_given_once(keys: Sequence[Hashable], what: str) -> None:
    if len(set(keys)) < len(keys):
        raise InputError(f"a run of {what} is given twice; pass each file once.")


def check_prefixes(runs: Iterable[tuple[str, str]]) -> None:
    """Pairs of a prefix of figures and its family: figures of two families cannot have one prefix in one file."""
    families: dict[str, str] = {}
    for prefix, family in runs:
        other = families.setdefault(prefix, family)
        if other != family:
            raise InputError(f"figures of {other} and {family} have the same names; merge one of them.")


def check_one_experiment(one: Run, other: Run, changed: Sequence[str], what: str) -> None:
    """Joined runs have one commit and equal settings; `changed` names those that differ."""
    if changed or one.commit != other.commit:
        raise InputError(
            f"seeds {one.seed} and {other.seed} of {what} differ in {', '.join(changed) or 'their commit'}; "
            "merge runs of one setting and one commit."
        )
