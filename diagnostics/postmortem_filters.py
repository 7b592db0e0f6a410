"""How values stand on the page of a post-mortem: each filter of its template, which escapes what came from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from jinja2 import Environment, StrictUndefined

from diagnostics.record import WIDE_BUCKETS_S, AlertRecord, EvidenceRecord, RunRecord
from diagnostics.scope import scope_text
from diagnostics.unanswered import counted, part_unanswered
from diagnostics.value_format import came_after, format_seconds, format_value

NOT_RECORDED = "not recorded"


def _utc(at: float | None) -> str:
    return NOT_RECORDED if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def clock(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%H:%M:%S")


def _known(value: object) -> str:
    return NOT_RECORDED if value is None else str(value)


def _span(seconds: float | None) -> str:
    return NOT_RECORDED if seconds is None else format_seconds(seconds)


def _worst_value(alert: AlertRecord) -> str:
    value = alert.value if alert.worst_value is None else alert.worst_value
    return "unknown" if value is None else f"{value:.4g}"


def _wait(seconds: float | None) -> str:
    is_wide = seconds is not None and seconds > WIDE_BUCKETS_S
    return f"about {_span(seconds)}" if is_wide else _span(seconds)


def _text(value: object) -> str:
    """One line that adds no markup: no table cell, tag, link or heading begins in it."""
    flat = " ".join(str(value).split())
    return re.sub(r"([\\|<>`*\[\]])", r"\\\1", flat)


def _code(value: object) -> str:
    """An inline code span that also fits a table cell. A pipe in a cell is escaped even inside code (GFM)."""
    flat = " ".join(str(value).split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", flat)), default=0)
    fence = "`" * (longest + 1)
    return f"{fence} {flat} {fence}" if longest else f"`{flat}`"


def _pairs(mapping: Mapping[str, Any]) -> str:
    """`key: value` pairs of a scope, receipt or inputs in one line; nested values as JSON."""
    if not mapping:
        return "—"
    return _text(", ".join(f"{key}: {_plain(value)}" for key, value in mapping.items()))


def _plain(value: object) -> str:
    return str(value) if isinstance(value, str | int | float | bool) else json.dumps(value, default=str)


def _measured(evidence: EvidenceRecord) -> str:
    if evidence.value is None:
        return "—"  # a condition is in the question: its number is what is asked for only where it is yes
    value = format_value(evidence.value, evidence.unit or "count")
    remark = evidence.why_unknown if evidence.answer == "unknown" else evidence.usual
    return f"{value} ({_text(remark)})" if remark else value


def _whose(run: RunRecord) -> str:
    """Whose doing a run beside the incident was; "" of its own."""
    if not run.is_apart:
        return ""
    if run.incident_id:
        return f", for {run.incident_id}"
    return ", by automation" if run.unasked else ", by hand"


def _by(run: RunRecord) -> str:
    if run.decided_by is None:
        return "nobody decided"
    return f"decided by {_text(run.decided_by)} at {_utc(run.decided_at)}"


ENVIRONMENT = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False)  # noqa: S701 - Markdown; the filters below escape
ENVIRONMENT.tests["came_after"] = came_after
ENVIRONMENT.filters |= {
    "utc": _utc,
    "clock": clock,
    "known": _known,
    "span": _span,
    "wait": _wait,
    "worst_value": _worst_value,
    "text": _text,
    "where": scope_text,
    "code": _code,
    "pairs": _pairs,
    "measured": _measured,
    "parted": part_unanswered,
    "counted": counted,
    "by": _by,
    "whose": _whose,
}
