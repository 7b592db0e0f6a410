"""Every question asked once for a scope: its answer with query, value, age and limit. Pure but for `run_query`.

A value that is missing, stale, NaN, or between the limits of yes and no is unknown. Unknown is never no.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from diagnostics.diagnosis import AnswerWord, Evidence
from diagnostics.evidence.question import Question
from diagnostics.query import AskedAt, RunQuery, bind_query, reads_own_numbers
from diagnostics.value_format import format_seconds, format_value
from diagnostics.walker import fresh_value, silence_of

MIN_PAST_S = 60.0
PAST_STEP_S = 5.0
DAY_S = 86400.0
OTHER_DAYS = (("yesterday", DAY_S), ("a week ago", 7 * DAY_S))
HALF_PAST_S = 900.0  # most pasts are of half an hour: that of another day has this hour in its middle
# How many steps of the last ten minutes before the onset had traffic; no value where nobody counts arrivals.
_PAST_QUERY = f"count_over_time((sum(llm:arrivals:rate{{{{{{scope}}}}}}) > 0)[10m:{PAST_STEP_S:.0f}s] {{{{before}}}})"

Readings = Mapping[str, Evidence]
"""What was answered, by question."""


def read_all(
    questions: Iterable[Question], scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt
) -> dict[str, Evidence]:
    """The answers for `scope`. What does not answer its scrapes says nothing of itself: its last values are unknown."""
    silence = silence_of(scope, run_query)
    around, of_numbers = _around(scope), _no_past(scope, run_query, asked)
    no_past = _NoPast(of_numbers, of_numbers if around is scope else _no_past(around, run_query, asked))
    return {one.id: _read(one, scope, run_query, asked, silence, no_past) for one in questions}


class _NoPast(NamedTuple):
    """Why there is nothing to compare with; "" where there is."""

    of_numbers: str  # of the scope's own
    of_changes: str  # a node that a deploy has just started has no numbers from before, and the deploy is known


def _around(scope: Mapping[str, str]) -> Mapping[str, str]:
    """The pool that a node is in; any other scope itself."""
    return {"pool": scope["pool"]} if scope.get("node") and scope.get("pool") else scope


def _no_past(scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt) -> str:
    """Why there is nothing to compare with: traffic began shortly before; "" when it did not, or nobody knows.

    A fleet that has just been started has a past of zeros and first requests: everything is many times as much as then.
    """
    query, why = bind_query(_PAST_QUERY, scope, asked)
    steps = run_query(query).value if not why else None
    if steps is None or steps * PAST_STEP_S >= MIN_PAST_S:
        return ""
    past_s = format_seconds(steps * PAST_STEP_S)
    # Not "traffic began": a controller that was just started knows no older traffic, whatever there was.
    least = format_seconds(MIN_PAST_S)
    return f"no past to compare with: traffic is known from {past_s} before it began on, the least is {least}"


def _read(
    question: Question,
    scope: Mapping[str, str],
    run_query: RunQuery,
    asked: AskedAt,
    silence: str,
    no_past: _NoPast,
) -> Evidence:
    template = question.template(scope)
    query, why = bind_query(template, scope, asked)
    if not why and "{{onset}}" in template:
        why = no_past.of_changes
    elif not why and "{{before}}" in template:
        why = no_past.of_numbers
    if not why and silence and reads_own_numbers(query, scope):
        why = silence
    if why:
        return _evidence(question, "unknown", query, None, None, why)
    result = run_query(query)
    age_s = None if result.at is None else max(0.0, asked.now - result.at)
    value, why = fresh_value(result, age_s, question.max_age_s)
    word: AnswerWord = "unknown"
    if not why and value is not None:
        word, why = _judge(question, value, asked)
    found = _evidence(question, word, query, value, age_s, why)
    if word != "yes" or not question.compares_with_past(scope):
        return found
    return replace(found, usual=on_other_days(question, scope, run_query, asked))


def day_ends_at(now: float, ago_s: float) -> float:
    """Where the past of a day so long ago ends."""
    return now - ago_s + HALF_PAST_S


def on_other_days(
    question: Question, scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt, *, tells_gaps: bool = False
) -> str:
    """What the question says against this hour of other days, in words; "" where nobody kept them.

    What rises each morning is not what broke. It decides nothing: a fleet that is overrun each morning is overrun.
    `tells_gaps`: a day without a value is named too.
    """
    said = []
    for day, ago_s in OTHER_DAYS:
        until = day_ends_at(asked.now, ago_s)
        if asked.kept_since is not None and until < asked.kept_since:
            continue  # asking for what nobody kept took a quarter of a verdict's CPU
        query, _ = bind_query(question.template(scope), scope, replace(asked, past_until=until))
        value, _ = fresh_value(run_query(query), 0.0, question.max_age_s)
        if value is not None:
            word = "yes" if question.when.holds(value) else "no"
            said.append(f"{day} {word}, {format_value(value, question.unit)}")
        elif tells_gaps:
            said.append(f"{day} unknown: no history")
    return f"against this hour {', '.join(said)}" if said else ""


def _judge(question: Question, value: float, asked: AskedAt) -> tuple[AnswerWord, str]:
    """The answer to a fresh value, and why it is unknown."""
    if question.when.holds(value):
        return "yes", ""
    if question.unless is not None and not question.unless.holds(value):
        return "unknown", "between yes and no"
    since = asked.now - asked.onset
    if 0 < since < question.lag_s:  # 0: nobody knows when it began
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
        value=value if word == "yes" or question.is_told_always else None,
        threshold=question.threshold,
        unit=question.unit,
        age_s=age_s,
        why_unknown=why,
    )
