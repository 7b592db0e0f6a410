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
    def __init__(self, line_number: int, reason: str) -> None:
        super().__init__(f"line {line_number}: {reason}")
        self.line_number = line_number
        self.reason = reason


class BadExpressionError(AlertsError):
    pass


class QueryError(AlertsError):
    pass


class BadRuleError(AlertsError):
    pass


class BadCaseError(AlertsError):
    pass


class BadCatalogError(AlertsError):
    pass


class BadRecordingError(AlertsError):
    pass
