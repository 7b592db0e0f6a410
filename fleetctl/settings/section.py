"""What every section of the settings is: closed to unknown keys, never changed, every field described."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

LABEL_NAME = r"^[a-zA-Z_][a-zA-Z0-9_]*$"
"""A label's name in Prometheus' data model."""


class Section(BaseModel):
    """One mapping of the settings. Its docstring and its fields' descriptions are the documentation of the keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True, defer_build=True)
