"""What a reviewer of rule files has to say: the problem by itself, and the finding with its place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """What a check says of one expression or rule; the linter adds the place."""

    severity: Severity
    check: str  # a short, stable name, for scripts
    message: str  # what is wrong and why
    remedy: str = ""  # what to write instead
    is_about_expression: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect; `group` and `rule` are "" when the whole file or group is meant. `line` counts from 1."""

    file: str
    line: int
    group: str
    rule: str
    severity: Severity
    check: str
    message: str
    remedy: str

    def __str__(self) -> str:
        place = ", ".join(part for part in (self.group, self.rule) if part)
        remedy = f"; {self.remedy}" if self.remedy else ""
        return f"{self.file}:{self.line}: {place + ': ' if place else ''}{self.severity}: {self.message}{remedy}"
