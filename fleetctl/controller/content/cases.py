"""The users' unit tests of rules (promtool's format), run over all rules as they would be in force."""

from __future__ import annotations

from typing import NamedTuple

from alerts.errors import AlertsError
from alerts.review.casefile import run_case_file
from fleetctl.controller.content.content import Content, ContentProblem


class CaseResult(NamedTuple):
    """How many expectations were looked at, and what did not hold."""

    num_checks: int
    problems: list[ContentProblem]


def run_cases(content: Content) -> CaseResult:
    """Every case of the users' folders. `rule_files` of a case is for promtool: here a rule may override another."""
    num_checks = 0
    problems: list[ContentProblem] = []
    for path in content.cases:
        try:
            report = run_case_file(path, rules=content.groups)
        except AlertsError as error:
            problems.append(ContentProblem("error", str(path), 0, "", str(error).removeprefix(f"{path}: ")))
            continue
        num_checks += report.num_checks
        problems += [
            ContentProblem("error", str(path), 0, "", failure.removeprefix(f"{path}: ")) for failure in report.failures
        ]
    return CaseResult(num_checks, problems)
