"""The evidence of a verdict: what speaks for its cause first; what nothing was read of is counted by why."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics.unanswered import counted, part_unanswered
from fleetctl.cli.incident_columns import EVIDENCE_COLUMNS
from fleetctl.cli.output import Output, print_rows, stdout
from fleetctl.wire.diagnosis import Evidence

_ORDER = {"for": 0, "against": 1, "": 2}


def print_evidence(evidence: Sequence[Evidence], output: Output) -> None:
    """As a table; with `wide` all of it, in the order in which it was asked."""
    if output is not Output.table:
        print_rows(evidence, EVIDENCE_COLUMNS, output, empty="no question could be asked")
        return
    told, silent = part_unanswered(evidence)
    told.sort(key=lambda one: _ORDER[one.speaks])
    print_rows(told, EVIDENCE_COLUMNS, output, empty="no question has an answer")
    for why, titles in silent.items():
        stdout().print(f"not known: {counted(titles)}: {why}", markup=False)
    if silent:
        stdout().print("-o wide lists them", markup=False)
