"""One component of a model in diffusers layout, loaded by its class; free of torch."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from spotlight.core.errors import WeightsError

PROBLEMS = (OSError, ValueError, RuntimeError, KeyError, TypeError, SafetensorError)


def load(component_class: Any, source: str, component: str, **options: Any) -> Any:
    if Path(source).is_dir() and not (Path(source) / component).is_dir():
        raise WeightsError(
            f"The model in '{source}' has no '{component}', because that folder is missing; fetch the whole "
            f"model, in diffusers layout."
        )
    try:
        return component_class.from_pretrained(source, subfolder=component, **options)
    except PROBLEMS as problem:
        reason = (str(problem).strip() or type(problem).__name__).splitlines()[0].rstrip(".;: ")
        raise WeightsError(
            f"The '{component}' of '{source}' cannot be loaded, because its files are missing, cut short or "
            f"altered ({reason}); fetch them again."
        ) from problem
