"""Base class of recipe sections: immutable; refuses unknown keys, NaN and infinities."""

import math
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Section(BaseModel):
    """One named part of a recipe; its class is beside the code that it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def _is_number_or_auto(value: Any) -> Any:
    """Validate before the union, whose pydantic error would list every member that refused the value."""
    if value == "auto":
        return value
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise ValueError("it takes a finite number, at least 0, or auto")
    return number


NumberOrAuto: TypeAlias = Annotated[
    Annotated[float, Field(ge=0)] | Literal["auto"], BeforeValidator(_is_number_or_auto)
]
