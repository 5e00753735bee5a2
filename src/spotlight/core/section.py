"""Base class of recipe sections: immutable; refuses unknown keys, NaN and infinities."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One named part of a recipe; its class is beside the code that it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
