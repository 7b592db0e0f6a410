"""One thing a reviewer says about one rule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Remark:
    severity: Literal["error", "warning"]
    check: str  # a short, stable name, for scripts
    message: str  # what is wrong and why
    remedy: str = ""  # what to write instead
    is_about_expression: bool = True
