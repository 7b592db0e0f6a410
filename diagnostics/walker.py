"""The walk through a tree: pure, every answer kept with its query, value, age and limit.

A value that is missing, stale or not a number answers "unknown". Unknown never counts as "no": it takes its
own branch, it rules nothing out, and it keeps the verdict from being more than likely.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from diagnostics.diagnosis import AnswerWord, Confidence, Diagnosis, Evidence
from diagnostics.query import (
    PLACEHOLDER,
    AskedAt,
    QueryResult,
    RunQuery,
    bind_query,
    liveness_query,
    without_own_numbers,
)
from diagnostics.scope import scope_text
from diagnostics.tree import CONTINUE, Question, Tree, Verdict
from diagnostics.value_format import format_seconds, format_value


def walk(
    tree: Tree, scope: Mapping[str, str], run_query: RunQuery, now: float, onset: float | None = None
) -> Diagnosis:
    """The diagnosis for `scope` (labels such as node and pool) at Unix time `now`; `run_query` gives its values.

    `onset`: when what is asked about began (an alert's `active_at`), None: now. What is compared with the past is
    compared with the time before it. A scope that does not answer at all says nothing about itself: its last numbers
    are unknown, however fresh they look in a rule's window.

    `confirmed` when every question on the way had a fresh answer; `likely` when one had not, or when the
    verdict itself rests on coincidence; `unknown` when the tree ends without naming a cause.
    """
    asked = AskedAt(now, now if onset is None else onset)
    silence = silence_of(scope, run_query)
    evidence: list[Evidence] = []
    index = 0
    verdict: Verdict | None = None
    while index < len(tree.questions):
        question = tree.questions[index]
        found = _answer(question, scope, run_query, asked, tree.max_age_s, silence)
        evidence.append(found)
        target = {"yes": question.if_yes, "no": question.if_no, "unknown": question.if_unknown}[found.answer]
        if target == CONTINUE:
            index += 1
            continue
        verdict = tree.verdicts.get(target)
        if verdict is not None:
            break
        position = tree.position(target)
        if position is None:  # "end"
            break
        assert position > index  # checked when the tree was loaded
        index = position
    return _conclude(tree, scope, verdict, tuple(evidence), now)


def silence_of(scope: Mapping[str, str], run_query: RunQuery) -> str:
    """Why the scope's own numbers are no evidence; "" when something in it answers, or nobody knows."""
    if not (scope.get("node") or scope.get("pool")):
        return ""
    is_silent = run_query(liveness_query(scope)).value == 0
    return f"{scope_text(scope)} does not answer: its last numbers are no evidence" if is_silent else ""


def _answer(
    question: Question,
    scope: Mapping[str, str],
    run_query: RunQuery,
    asked: AskedAt,
    max_age_s: float,
    silence: str,
) -> Evidence:
    query, why = bind_query(question.query, scope, asked)
    if why and question.pool_query is not None:
        query, why = bind_query(question.pool_query, scope, asked)
    told = without_own_numbers(query, scope) if silence and not why else query
    if why or told is None:
        return _evidence(question, "unknown", query, QueryResult(None, None, why or silence), None)
    result = run_query(told)
    age_s = None if result.at is None else max(0.0, asked.now - result.at)
    value, why = fresh_value(result, age_s, max_age_s)
    if why:
        return _evidence(question, "unknown", query, QueryResult(value, result.at, why), age_s)
    assert value is not None
    return _evidence(question, "yes" if question.limit.holds(value) else "no", query, result, age_s)


def fresh_value(result: QueryResult, age_s: float | None, max_age_s: float) -> tuple[float | None, str]:
    """`(value, "")` where it is evidence, else why it is none; with the value where there is one, for a reader."""
    value = result.value
    if value is None:
        return None, result.why_unknown or "no data"
    if not math.isfinite(value):
        return None, "the value is not a number"
    if age_s is None:
        return value, "the age of the value is not known"
    if age_s > max_age_s:
        return value, f"stale: {format_seconds(age_s)} old, the limit is {format_seconds(max_age_s)}"
    return value, ""


def _evidence(question: Question, word: AnswerWord, query: str, result: QueryResult, age_s: float | None) -> Evidence:
    return Evidence(
        question=question.id,
        title=question.ask,
        answer=word,
        query=query,
        value=result.value,
        threshold=question.threshold,
        unit=question.unit,
        age_s=age_s,
        why_unknown=result.why_unknown if word == "unknown" else "",
    )


def _conclude(
    tree: Tree, scope: Mapping[str, str], verdict: Verdict | None, evidence: tuple[Evidence, ...], now: float
) -> Diagnosis:
    optional = {question.id for question in tree.questions if question.optional}
    unknown = tuple(
        f"{found.title} ({found.why_unknown})"
        for found in evidence
        if found.answer == "unknown" and found.question not in optional
    )
    cause = verdict.cause if verdict is not None else None
    title = _no_cause_title(evidence) if verdict is None else _title(verdict, tree, scope, evidence)
    confidence: Confidence = "unknown"
    if verdict is not None:
        confidence = "likely" if unknown else verdict.at_most
    return Diagnosis(
        tree=tree.name,
        cause=cause,
        title=title,
        confidence=confidence,
        evidence=evidence,
        ruled_out=_ruled_out(tree, evidence, cause),
        not_known=unknown,
        at=now,
    )


def _ruled_out(tree: Tree, evidence: tuple[Evidence, ...], cause: str | None) -> tuple[str, ...]:
    """Causes in the order of asking, for which every question asked on the way said no."""
    excludes = {question.id: question.rules_out for question in tree.questions}
    ruled: dict[str, bool] = {}
    for found in evidence:
        excluded = excludes[found.question]
        if excluded is not None and excluded != cause:
            ruled[excluded] = ruled.get(excluded, True) and found.answer == "no"
    return tuple(name for name, holds in ruled.items() if holds)


def _title(verdict: Verdict, tree: Tree, scope: Mapping[str, str], evidence: tuple[Evidence, ...]) -> str:
    units = {question.id: question.unit for question in tree.questions}
    values = {found.question: format_value(found.value, units[found.question]) for found in evidence}
    values["value"] = values[evidence[-1].question]
    values["where"] = scope_text(scope)
    values |= {name: scope.get(name, "unknown") for name in ("node", "pool", "model")}
    return PLACEHOLDER.sub(lambda match: values.get(match.group(1), "not asked"), verdict.title)


def _no_cause_title(evidence: tuple[Evidence, ...]) -> str:
    if evidence and all(found.answer == "unknown" for found in evidence):
        return "Could not look: no question had a fresh answer"
    return "No known cause fits what was measured"
