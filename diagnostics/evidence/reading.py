"""Every question asked once for a scope: its answer with query, value, age and limit. Pure but for `run_query`.

A value that is missing, stale, NaN, or between the limits of yes and no is unknown. Unknown is never no.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from diagnostics.diagnosis import AnswerWord, Evidence
from diagnostics.evidence.question import Question
from diagnostics.query import AskedAt, QueryResult, RunQuery, bind_query, liveness_query, reads_own_numbers
from diagnostics.scope import scope_text
from diagnostics.value_format import format_seconds

Readings = Mapping[str, Evidence]
"""What was answered, by question."""


def read_all(
    questions: Iterable[Question], scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt
) -> dict[str, Evidence]:
    """The answers for `scope`. What does not answer its scrapes says nothing of itself: its last values are unknown."""
    silence = _silence(scope, run_query)
    return {one.id: _read(one, scope, run_query, asked, silence) for one in questions}


def _silence(scope: Mapping[str, str], run_query: RunQuery) -> str:
    """Why the scope's own numbers are no evidence; "" when something in it answers, or nobody knows."""
    if not (scope.get("node") or scope.get("pool")):
        return ""
    is_silent = run_query(liveness_query(scope)).value == 0
    return f"{scope_text(scope)} does not answer: its last numbers are no evidence" if is_silent else ""


def _read(question: Question, scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt, silence: str) -> Evidence:
    template = question.query
    query, why = bind_query(template, scope, asked)
    if question.pool_query is not None and not scope.get("node"):
        query, why = bind_query(question.pool_query, scope, asked)
    if not why and silence and reads_own_numbers(query, scope):
        why = silence
    if why:
        return _evidence(question, "unknown", query, None, None, why)
    result = run_query(query)
    age_s = None if result.at is None else max(0.0, asked.now - result.at)
    word, why = _judge(question, result, age_s, asked)
    value = result.value if result.value is not None and math.isfinite(result.value) else None
    return _evidence(question, word, query, value, age_s, why)


def _judge(question: Question, result: QueryResult, age_s: float | None, asked: AskedAt) -> tuple[AnswerWord, str]:
    """The answer, and why it is unknown."""
    value = result.value
    if value is None:
        return "unknown", result.why_unknown or "no data"
    if not math.isfinite(value):
        return "unknown", "the value is not a number"
    if age_s is None:
        return "unknown", "the age of the value is not known"
    if age_s > question.max_age_s:
        return "unknown", f"stale: {format_seconds(age_s)} old, the limit is {format_seconds(question.max_age_s)}"
    if question.when.holds(value):
        return "yes", ""
    if question.unless is not None and not question.unless.holds(value):
        return "unknown", "between yes and no"
    since = asked.now - asked.onset
    if since < question.lag_s:
        return "unknown", f"too early: it shows {format_seconds(question.lag_s)} after the onset"
    return "no", ""


def _evidence(
    question: Question, word: AnswerWord, query: str, value: float | None, age_s: float | None, why: str
) -> Evidence:
    return Evidence(
        question=question.id,
        title=question.ask,
        answer=word,
        query=query,
        value=value,
        threshold=question.threshold,
        unit=question.unit,
        age_s=age_s,
        why_unknown=why,
    )
