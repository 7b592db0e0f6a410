"""What a verdict says of its place, and an answer in words: values that nobody measured are left out. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from diagnostics.diagnosis import Evidence
from diagnostics.evidence.question import Question
from diagnostics.evidence.reading import Readings
from diagnostics.expectation import Expectation
from diagnostics.query import PLACEHOLDER
from diagnostics.scope import scope_text
from diagnostics.value_format import format_value

UNKNOWN = "unknown"  # as `format_value` has it
IF_YES = re.compile(r"\{\{\s*([a-z0-9_]+)\?\s*\}\}")  # in a part of `says`: it is said where that was answered with yes


def verdict_title(
    expects: Expectation, questions: Mapping[str, Question], scope: Mapping[str, str], readings: Readings
) -> str:
    """What a cause says of the scope, without the parts whose value nobody measured or that tell of no symptom."""
    values = {name: format_value(one.value, questions[name].unit) for name, one in readings.items()}
    values["where"] = scope_text(scope)
    # Of a cause that one node has: where it shows in what a pool's or the fleet's alerts say, not all of it has it.
    values["a_node"] = scope["node"] if scope.get("node") else f"a node of {scope_text(scope)}"
    values |= {name: scope.get(name, "unknown") for name in ("node", "pool", "model")}
    says = expects.says
    if not scope.get("pool"):
        says = says.replace("Pool {{pool}}", "The fleet").replace("pool {{pool}}", "the fleet")
    head, colon, tail = says.partition(": ")
    parts = [IF_YES.sub("", part) for part in tail.split(", ") if _is_seen(part, readings)]
    known = [part for part in parts if not _has_unknown(part, values)]
    known = [part for part in known if not _is_no_symptom(part, readings)] or known
    told = colon.join((head, ", ".join(known).removeprefix("and ").removeprefix("or "))) if known and tail else head
    title = PLACEHOLDER.sub(lambda match: values.get(match.group(1), "not asked"), told)
    return f"A{title[1:]}" if title.startswith("a node of ") else title


def _is_seen(part: str, readings: Readings) -> bool:
    """Whether all that a part of a title hangs on was answered with yes."""
    return all(name in readings and readings[name].answer == "yes" for name in IF_YES.findall(part))


def _has_unknown(part: str, values: Mapping[str, str]) -> bool:
    """Whether a part of a title would say "unknown": it is left out."""
    return any(values.get(match.group(1), UNKNOWN) == UNKNOWN for match in PLACEHOLDER.finditer(part))


def _is_no_symptom(part: str, readings: Readings) -> bool:
    """Whether a part of a title would give the value of a question that was answered no: "1.0× as long as before"."""
    return any(readings[name].answer == "no" for name in PLACEHOLDER.findall(part) if name in readings)


def answer_in_words(one: Evidence, *, short: bool = False) -> str:
    said = one.answer if one.answer != "unknown" else f"unknown: {one.why_unknown}"
    is_flag = one.unit == "count" and one.value in (0, 1)  # "no, 1" of a flag that is 1 where all is well helps nobody
    value = f", {format_value(one.value, one.unit)}" if one.value is not None and not is_flag else ""
    return f"{said}{value}" if short else f"{one.title} {said}{value}"
