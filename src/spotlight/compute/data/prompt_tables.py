"""Prompts in tables: parquet files and Hugging Face datasets, from their columns `prompt` and `target`; free of torch.

pyarrow and datasets are an extra, `data`, and are imported when a table is read. Code of a dataset's repository never
runs: `datasets` has had no loading scripts since its version 4. Rows are counted from 0, as both libraries do.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from spotlight.compute.data.prompt_rows import PromptSet, collected, from_fields
from spotlight.core.errors import EnvironmentProblem, InputError, PromptError

HUB_PREFIX = "hf:"
HUB_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?::([\w.-]+))?", re.ASCII)
PROMPT, TARGET = "prompt", "target"
DEFAULT_SPLIT = "train"
DATASET_FILES = ("state.json", "dataset_dict.json")
"""Files that `save_to_disk` writes for a dataset and for a dictionary of splits."""


def is_saved_dataset(folder: Path) -> bool:
    return any((folder / name).is_file() for name in DATASET_FILES)


def from_parquet(path: Path, source: str) -> PromptSet:
    """Read a parquet file; other columns than prompt and target are refused, as other fields of a JSON line are."""
    pyarrow = _library("pyarrow", "pyarrow.parquet")
    try:
        file = pyarrow.parquet.ParquetFile(path)
        columns = file.schema_arrow.names
        if unknown := sorted(set(columns) - {PROMPT, TARGET}):
            raise _refused(source, columns, f"{', '.join(unknown)} would be ignored; rename or remove")
        _check_columns(source, columns)
        table = file.read().to_pydict()
    except (OSError, pyarrow.ArrowException) as error:
        raise PromptError(
            f"the prompt file {source} cannot be read as parquet ({_first_line(error)}), so it is damaged or another "
            "kind of file; write it again."
        ) from error
    return _from_columns(source, table)


def from_saved(folder: Path, source: str) -> PromptSet:
    """Read a folder that `Dataset.save_to_disk` wrote; other columns are ignored."""
    datasets = _library("datasets")
    try:
        found = datasets.load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise PromptError(
            f"the dataset folder {source} cannot be read ({_first_line(error)}), so files are missing or damaged; save "
            "it again with save_to_disk."
        ) from error
    if isinstance(found, dict):
        raise InputError(
            f"the dataset folder {source} holds the splits {', '.join(found)}, but prompts are read from one; name its "
            f"folder, such as {Path(source) / next(iter(found), DEFAULT_SPLIT)}."
        )
    return _from_dataset(source, found)


def from_hub(source: str) -> PromptSet:
    """Read `hf:owner/name` (its split train, or its only one) or `hf:owner/name:split`; other columns are ignored."""
    named = HUB_NAME.fullmatch(source)
    if named is None:
        raise InputError(
            f"'{source}' does not name a dataset, because the form is hf:owner/name or hf:owner/name:split; correct it."
        )
    name, split = named.groups()
    datasets = _library("datasets")
    try:
        found = datasets.load_dataset(name, split=split)
    except ConnectionError as error:
        raise EnvironmentProblem(
            f"the dataset {name} cannot be fetched ({_first_line(error)}), because the hub cannot be reached and the "
            "dataset is not in this machine's cache; connect, or name a folder made by save_to_disk."
        ) from error
    except (FileNotFoundError, ValueError, datasets.exceptions.DatasetsError) as error:
        raise InputError(
            f"the dataset {source} cannot be loaded ({_first_line(error)}); check owner, name and split on the hub."
        ) from error
    if isinstance(found, dict):
        chosen = DEFAULT_SPLIT if len(found) > 1 else next(iter(found))
        if chosen not in found:
            raise InputError(
                f"the dataset {name} has the splits {', '.join(found)} and no {DEFAULT_SPLIT}, so one must be named; "
                f"write {HUB_PREFIX}{name}:{next(iter(found))}."
            )
        found = found[chosen]
    return _from_dataset(source, found)


def _from_dataset(source: str, dataset: Any) -> PromptSet:
    _check_columns(source, dataset.column_names)
    wanted = [name for name in (PROMPT, TARGET) if name in dataset.column_names]
    return _from_columns(source, dataset.select_columns(wanted)[:])


def _check_columns(source: str, columns: Sequence[str]) -> None:
    if PROMPT not in columns:
        raise _refused(source, columns, f"there is no {PROMPT}; rename")


def _refused(source: str, columns: Sequence[str], why: str) -> PromptError:
    return PromptError(
        f"{source} has the columns {', '.join(columns) or 'none'}, but prompts are read from the columns {PROMPT} and, "
        f"optionally, {TARGET}, and {why} them."
    )


def _from_columns(source: str, table: Mapping[str, Sequence[object]]) -> PromptSet:
    texts = table[PROMPT]
    targets = table.get(TARGET, [None] * len(texts))
    rows = ({PROMPT: text, TARGET: target} for text, target in zip(texts, targets, strict=True))
    return collected(source, "row", enumerate(rows), from_fields)


def _library(name: str, module: str = "") -> ModuleType:
    """Import an optional library; returns its top package."""
    try:
        return __import__(module or name)
    except ImportError as error:
        raise EnvironmentProblem(
            f"the package {name} is not installed, but prompts in parquet files and datasets are read with it; run: "
            "pip install 'spotlight-rl[data]'."
        ) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".;: ")
