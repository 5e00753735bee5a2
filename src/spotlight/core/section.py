"""The base of every section of a recipe: immutable, unknown keys, NaN and infinities refused."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """One named part of a recipe; its class lives beside the code it configures."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)
