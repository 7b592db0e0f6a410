"""Errors of the alerts package. Each message is one line that names the place and what is wrong there.

AlertsError
├── BadExpositionError   a scraped text is not the Prometheus text format; names the line
├── BadExpressionError   an expression cannot be parsed, or uses what we do not support
├── QueryError           a valid expression failed on the data it met (as Prometheus fails it)
├── BadRuleError         a rule file; names file, group and rule
├── BadCaseError         a promtool test file; names file and test
├── BadCatalogError      a metrics catalog; names file and place
└── BadRecordingError    recorded series that cannot be read or fetched; names file and line, or the server
"""

from __future__ import annotations


class AlertsError(Exception):
    """Something outside is wrong: a text, an expression, a file. Never a bug of ours."""


class BadExpositionError(AlertsError):
    """A scraped text is not the Prometheus text format. `line_number` counts from 1; `reason` is without the place."""

    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number
        self.reason = reason


class BadExpressionError(AlertsError):
    """An expression cannot be parsed, or uses what we do not support."""


class QueryError(AlertsError):
    """A valid expression failed on the data that it met, as Prometheus fails it."""


class BadRuleError(AlertsError):
    """A rule file cannot be used: file, group and rule, then the reason."""


class BadCaseError(AlertsError):
    """A file of promtool's unit tests cannot be used: file and test, then the reason."""


class BadCatalogError(AlertsError):
    """A metrics catalog cannot be used: file and place, then the reason."""


class BadRecordingError(AlertsError):
    """Recorded series cannot be read or fetched: file and line, or the server, then the reason."""
