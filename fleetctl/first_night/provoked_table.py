"""Which causes are made on real nodes, by which fault, and why the others are not, for docs/first-night.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from fleetctl.first_night.catalogue import NOT_PROVOKED, provoked_by


def causes_part(right: Mapping[str, bool]) -> list[str]:
    """The page's part. `right`: of each fault that has a row, whether it went right."""
    by_cause = provoked_by()
    num_causes = len(by_cause) + len(NOT_PROVOKED)
    named = sum(any(right.get(fault) for fault in faults) for faults in by_cause.values())
    return [
        "## Which causes are provoked",
        "",
        f"{len(by_cause)} of the {num_causes} causes that a diagnosis can name, {named} of them in right rows:",
        "",
        "| cause | by |",
        "|---|---|",
        *(
            f"| {cause} | {', '.join(_with_state(one, right) for one in by_cause[cause])} |"
            for cause in sorted(by_cause)
        ),
        "",
        f"{len(NOT_PROVOKED)} are simulated by `make bench-diagnosis` alone:",
        "",
        "| cause | why not |",
        "|---|---|",
        *(f"| {cause} | {why} |" for cause, why in sorted(NOT_PROVOKED.items())),
        "",
    ]


def _with_state(fault: str, right: Mapping[str, bool]) -> str:
    if fault not in right:
        return f"{fault} (not run yet)"
    return fault if right[fault] else f"{fault} (not right yet)"
