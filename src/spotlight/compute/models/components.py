"""Components of a model in diffusers layout: loaded by class name, with every tensor accounted for."""

from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers

from spotlight.compute.models.component_files import PROBLEMS, load
from spotlight.compute.models.family_registry import FAMILIES, Family, family_of_class
from spotlight.compute.models.folder_facts import class_in_folder
from spotlight.core.errors import ConfigError, WeightsError


def checked_source(folder_or_hub_id: str) -> str:
    """Return an existing folder or a plausible hub id (`owner/name`); raises WeightsError otherwise."""
    folder = Path(folder_or_hub_id).expanduser()
    if folder.is_dir():
        return str(folder)
    owner, _, name = folder_or_hub_id.partition("/")
    if owner in ("", ".", "..", "~") or not name or "/" in name:
        raise WeightsError(
            f"There are no weights at '{folder_or_hub_id}', because it is neither a folder nor a hub id "
            f"(owner/name); give the folder of a model in diffusers layout."
        )
    return folder_or_hub_id


def family_of_source(source: str) -> Family | None:
    """The family of a folder or hub id by its class name; None if unreadable, which loading a component then reports.

    For a hub id only the transformer's settings are fetched, which are needed anyway.
    """
    if Path(source).is_dir():
        found = class_in_folder(Path(source))
    else:
        # Any model class reads the settings of any other.
        reader: Any = getattr(diffusers, next(iter(FAMILIES.values())).transformer)
        try:
            found = str(reader.load_config(source, subfolder="transformer")["_class_name"])
        except PROBLEMS:
            found = None
    return None if found is None else family_of_class(found, source)


def check_source(source: str, family: Family, dtype: torch.dtype) -> None:
    """Refuse another family and a dtype that the family does not compute in, before tensors are compared."""
    found = family_of_source(source)
    if found is not None and found != family:
        raise WeightsError(
            f"The model '{source}' is a {found.pipeline} ({found.name}), but {family.name} was requested, which is a "
            f"{family.pipeline}; load it as {found.name}."
        )
    name = str(dtype).removeprefix("torch.")
    if name not in family.dtypes:
        raise ConfigError(
            f"{family.name} cannot be loaded in {name}, because its activations need {' or '.join(family.dtypes)}; "
            f"use one of them."
        )


def load_text_pipeline(family: Family, source: str, dtype: torch.dtype) -> Any:
    """The family's pipeline with its text encoders and tokenizers only."""
    parts = {}
    for folder, class_name in family.text.items():
        component: Any = getattr(transformers, class_name)
        is_encoder = folder.startswith("text_encoder")
        loaded = load_weights(component, source, folder, dtype) if is_encoder else load(component, source, folder)
        parts[folder] = loaded
    return text_pipeline(family, parts)


def text_pipeline(family: Family, parts: dict[str, Any]) -> Any:
    pipeline: Any = getattr(diffusers, family.pipeline)
    return pipeline(transformer=None, vae=None, scheduler=None, **parts)


def load_weights(model_class: Any, source: str, component: str, dtype: torch.dtype, exact: bool = False) -> Any:
    """Load a model and refuse missing tensors; `exact` also refuses surplus tensors."""
    # Never a pickle, the fallback of both libraries where there is no safetensors file.
    options = {"dtype": dtype, "output_loading_info": True, "use_safetensors": True}
    model, report = load(model_class, source, component, **options)
    # The libraries only warn about missing tensors and leave them random.
    absent = sorted(str(key) for key in (*report["missing_keys"], *report["mismatched_keys"]))
    if absent:
        raise WeightsError(
            f"The '{component}' of '{source}' lacks {len(absent)} tensors (first: {absent[0]}), because its "
            f"weights and its config do not belong together; fetch both from one release."
        )
    # The libraries accept surplus tensors; a config with too few layers would run as a shallower model.
    surplus = sorted(str(key) for key in report["unexpected_keys"])
    if exact and surplus:
        raise WeightsError(
            f"The '{component}' of '{source}' has {len(surplus)} tensors too many (first: {surplus[0]}), because its "
            f"weights and its config do not belong together; fetch both from one release."
        )
    return model
