"""Every question asked once for a scope: its answer with query, value, age and limit. Pure but for `run_query`.

A value that is missing, stale, NaN, or between the limits of yes and no is unknown. Unknown is never no.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import NamedTuple

from diagnostics.diagnosis import AnswerWord, Evidence
from diagnostics.evidence.question import Question
from diagnostics.evidence.told_by import untold
from diagnostics.query import NO_DATA, AskedAt, RunQuery, bind_query, without_own_numbers
from diagnostics.value_format import format_seconds, format_value
from diagnostics.walker import fresh_value, silence_of

MIN_PAST_S = 60.0
MIN_USED_SHARE = 2 / 3  # of the times at which anything was asked: means over time count each time alike
PAST_STEP_S = 15.0
USED_FROM_TPS = 10  # prompt tokens a second of a node: a health check asks for a few dozen in a minute
DAY_S = 86400.0
OTHER_DAYS = (("yesterday", DAY_S), ("a week ago", 7 * DAY_S))
BETWEEN, TOO_EARLY = "between yes and no", "too early"  # why a value that was read is no answer
HALF_PAST_S = 900.0  # most pasts are of half an hour: that of another day has this hour in its middle
# How many steps of the half hour before the onset had traffic of users, and any; no value where nobody counts tokens.
_PROMPTS = "max(llm:prompt_tokens:rate{{{scope}}})"
_USED_QUERY = f"sum_over_time(({_PROMPTS} >= bool {USED_FROM_TPS})[30m:{PAST_STEP_S:.0f}s] {{{{before}}}})"
_ASKED_QUERY = f"sum_over_time(({_PROMPTS} > bool 0)[30m:{PAST_STEP_S:.0f}s] {{{{before}}}})"
# Where nobody counts tokens.
_ARRIVED_QUERY = (
    f"sum_over_time((sum(llm:arrivals:rate{{{{{{scope}}}}}}) > bool 0)[30m:{PAST_STEP_S:.0f}s] {{{{before}}}})"
)
_KNOWN_QUERY = f"count_over_time(count(llm:up{{{{{{scope}}}}}})[30m:{PAST_STEP_S:.0f}s] {{{{before}}}})"
LONG_KNOWN_S = 600.0  # a fleet that has been there for so long has a past of changes, used or not

Readings = Mapping[str, Evidence]
"""What was answered, by question."""


def read_all(
    questions: Iterable[Question], scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt
) -> dict[str, Evidence]:
    """The answers for `scope`. What does not answer its scrapes says nothing of itself: its last values are
    unknown, and what others know of it is not."""
    silence = silence_of(scope, run_query)
    around, of_numbers = _around(scope), _no_past(scope, run_query, asked)
    of_around = of_numbers if around is scope else _no_past(around, run_query, asked)
    is_long_known = bool(of_around) and _known_s(around, run_query, asked) >= LONG_KNOWN_S
    no_past = _NoPast(of_numbers, "" if is_long_known else of_around)
    asks = {one.id: one for one in questions}
    found = {name: _read(one, scope, run_query, asked, silence, no_past) for name, one in asks.items()}
    missing = {name: asks[name].template(scope) for name, one in found.items() if one.why_unknown == NO_DATA}
    never_told = untold(missing, scope, run_query)
    return {name: replace(one, why_unknown=never_told.get(name, one.why_unknown)) for name, one in found.items()}


class _NoPast(NamedTuple):
    """Why there is nothing to compare with; "" where there is."""

    of_traffic: str  # of what users ask for, and how it is served
    of_facts: str  # of what is there whether it is used or not; a node that a deploy has just started has its pool's


def _around(scope: Mapping[str, str]) -> Mapping[str, str]:
    """The pool that a node is in; any other scope itself."""
    return {"pool": scope["pool"]} if scope.get("node") and scope.get("pool") else scope


def _no_past(scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt) -> str:
    """Why there is no traffic to compare with; "" when there is, or nobody knows.

    A fleet that has just been started has a past of zeros and first requests: everything is many times as much as then.
    Nor are idle minutes a past, or health checks: any prompt is many times as long as those.
    """
    if asked.kept_since is not None and asked.onset - asked.kept_since < MIN_PAST_S:
        return "no past to compare with: the record begins with it"
    used, asked_for = (_steps(query, scope, run_query, asked) for query in (_USED_QUERY, _ASKED_QUERY))
    if used is None:
        used = asked_for = _steps(_ARRIVED_QUERY, scope, run_query, asked)
    if used is None or asked_for is None:
        return ""
    if not asked_for:
        return "no past to compare with: no traffic is known from before it began"
    used_s = used * PAST_STEP_S
    if used_s < MIN_PAST_S:
        # Not "traffic began": a controller that was just started knows no older traffic, whatever there was.
        known, least = format_seconds(used_s), format_seconds(MIN_PAST_S)
        return f"no past to compare with: traffic is known from {known} before it began, the least is {least}"
    if used < MIN_USED_SHARE * asked_for:
        return "no past to compare with: most of what was asked before it began was a few tokens, as health checks are"
    return ""


def _steps(template: str, scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt) -> float | None:
    query, why = bind_query(template, scope, asked)
    return None if why else run_query(query).value


def _known_s(scope: Mapping[str, str], run_query: RunQuery, asked: AskedAt) -> float:
    """How much of the half hour before the onset the scope was known at all."""
    return (_steps(_KNOWN_QUERY, scope, run_query, asked) or 0.0) * PAST_STEP_S


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
    if not why and question.needs_past(scope):
        why = no_past.of_facts if question.is_of_facts(scope) else no_past.of_traffic
    told = without_own_numbers(query, scope) if silence and not why else query
    if why or told is None:
        return _evidence(question, "unknown", query, None, None, why or silence)
    result = run_query(told)
    if result.value is None and told is not query:
        return _evidence(question, "unknown", query, None, None, silence)
    age_s = None if result.at is None else max(0.0, asked.now - result.at)
    value, why = fresh_value(result, age_s, question.max_age_s)
    if result.value is not None and value is None and ("{{before}}" in template or "{{onset}}" in template):
        why = "of then or of now nobody knows the value"
    word: AnswerWord = "unknown"
    if not why and value is not None:
        word, why = _judge(question, value, asked)
    found = _evidence(question, word, query, value, age_s, why)
    if word != "yes" or not question.compares_with_past(scope):
        return found
    return replace(found, usual=on_other_days(question, scope, run_query, asked))


def can_be_told(one: Evidence) -> bool:
    """Whether somebody tells what is asked: an answer, or a value that is none yet."""
    return one.answer != "unknown" or one.why_unknown.startswith((BETWEEN, TOO_EARLY))


def is_told_by_now(one: Evidence) -> bool:
    """Whether somebody tells what is asked, and it is not too early for it to show."""
    return can_be_told(one) and not one.why_unknown.startswith(TOO_EARLY)


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
        return "unknown", BETWEEN
    since = asked.now - asked.onset
    if 0 < since < question.lag_s:  # 0: nobody knows when it began
        return "unknown", f"{TOO_EARLY}: it shows {format_seconds(question.lag_s)} after the onset"
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
