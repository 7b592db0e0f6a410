"""A command's flag for a setting: its help, bounds and default are the setting's own."""

from __future__ import annotations

from typing import Any

import annotated_types
import typer

from fleetctl.settings.document import default_text, field_of


def setting_option(key: str, *flags: str) -> Any:
    """What typer takes for a flag that sets the dotted key. The flag's value is None when it is not given."""
    field = field_of(key)
    low: Any = next((one.ge for one in field.metadata if isinstance(one, annotated_types.Ge)), None)
    high: Any = next((one.le for one in field.metadata if isinstance(one, annotated_types.Le)), None)
    return typer.Option(*flags, help=field.description, show_default=default_text(field), min=low, max=high)
