"""The diagnosis of a scope: what was read, scored, and told so that a reader sees in ten seconds why. Pure.

The tree of the alerts is the order in which the evidence is shown; it decides nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from alerts.errors import BadExpressionError, QueryError
from alerts.promql import evaluate, evaluate_series
from alerts.sample import Sample
from alerts.series.store import SeriesStore
from diagnostics.cause import Cause, builtin_causes
from diagnostics.diagnosis import Confidence, Diagnosis, Evidence, Speaks
from diagnostics.evidence.changes import CHANGES_QUERY, STARTS_QUERY, recent_changes, seen_untold, starts_untold
from diagnostics.evidence.onset import LOOK_BACK_S, Onset, alert_onset, find_onset
from diagnostics.evidence.question import Question
from diagnostics.evidence.question_file import builtin_questions
from diagnostics.evidence.reading import Readings, can_be_told, read_all
from diagnostics.evidence.score import Fit, Ranking, rank_causes, telling_question
from diagnostics.evidence.seen_changes import seen_changes
from diagnostics.expectation import Expectation, Place
from diagnostics.query import PLACEHOLDER, AskedAt, bind_query, scope_matcher, store_query
from diagnostics.scope import scope_text
from diagnostics.tree import Tree
from diagnostics.value_format import format_value
from diagnostics.walker import walk

CONFIRMED_FROM = 0.9
LIKELY_FROM = 0.4
LIKELY_UNSEEN_FROM = 0.92  # where one of its musts could not be answered
DOUBTED_FROM = 0.8  # where an answer speaks against it
# Where one of those that must show the same sign is at work for certain, the likeliest is named, from a quarter on.
FAMILY_FROM = 0.8
LIKELIEST_FROM = 0.25
RUNNER_UP_FROM = 0.02
RARE_UNTIL = 0.02  # a sign that is so rare where nothing that expects it is at work
ONSET_STEP_S = 15.0
YOUNG_STEP_S = (
    5.0  # of a record's first minutes: where it began in them, a minute of past is twelve samples (MIN_BEFORE)
)
YOUNG_S = 300.0
AGED_S = 600.0  # alerts that began so soon after the record did have no past; and a change needs as much before it
OLD_S = 5400.0  # alerts that have stood for so long are how it always is: what joins them is another story
# What users send and get: a fault that no series of the trees shows is in one of them.
TRAFFIC = (
    "sum(llm:arrivals:rate{{{scope}}})",
    "sum(llm:generation_tokens:rate{{{scope}}})",
    "sum(llm:aborted:rate{{{scope}}}) / (sum(llm:requests:rate{{{scope}}}) > 0)",
    "max(llm:arrivals_share{{{scope}}})",
    "avg(llm:e2e_seconds:mean{{{scope}}} > 0)",
)
DRIFT_S = 3600.0  # of alerts that have always stood, where nothing changed at once: what crept up is so young
LEAST_DRIFT_S = 900.0  # and has so much of the record before it, at the least
LEAST_PAST_S = 90.0  # of a record: half a minute until rates have values, and a minute of them
RANK = {"unknown": 0, "likely": 1, "confirmed": 2}
STARTED_LATELY_S = 600.0  # as the question `started_lately`
ORDINARY_FROM = 0.2  # a yes that is so common speaks against nothing
MAX_WANTED = 5  # unknown answers that "none of mine" names
UNKNOWN = "unknown"  # as `format_value` has it
IF_YES = re.compile(r"\{\{\s*([a-z0-9_]+)\?\s*\}\}")  # in a part of `says`: it is said where that was answered with yes


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What is judged by: content, as far as the scorer needs it."""

    questions: Mapping[str, Question]
    expectations: Mapping[str, Expectation]

    @property
    def explains(self) -> Mapping[str, frozenset[str]]:
        """Each cause to the trees whose alerts it can be behind."""
        return {name: one.explains for name, one in self.expectations.items()}


@lru_cache(maxsize=1)
def builtin_knowledge() -> Knowledge:
    """The questions and causes that ship with the package. Raises BadContentFileError."""
    return knowledge_of(builtin_questions(), builtin_causes())


def knowledge_of(questions: Mapping[str, Question], causes: Mapping[str, Cause]) -> Knowledge:
    """What the scorer needs of them: causes that only trees of the old form name have no expectation."""
    expected = {name: one.expects for name, one in causes.items() if one.expects is not None}
    return Knowledge(questions, expected)


def diagnose(
    knowledge: Knowledge,
    trees: Sequence[Tree],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    active_at: float | None,
    told: frozenset[str] = frozenset(),
    elsewhere: Sequence[str] = (),
) -> Diagnosis:
    """What the trees of the alerts that stand, the gravest first, say of `scope`.

    `active_at`: when the first of the alerts began, None: now. `told`: causes that other incidents were given.
    `elsewhere`: symptom series of other trees, for alerts so old that what is asked about began later. Causes
    are scored for the trees that say what to ask; a tree with branches of its own is walked, and counts where it is
    surer.
    """
    active_at = now if active_at is None else active_at
    judged = [tree for tree in trees if tree.is_judged]
    found: list[Diagnosis] = []
    if judged:
        scope = with_pool(scope, store, now)
        own = [one for tree in judged for one in tree.onset]
        onset = _onset_of_alerts(own, [*elsewhere, *TRAFFIC], scope, store, active_at, now)
        ask = [name for tree in judged for name in tree.ask]
        found.append(judge(knowledge, [tree.name for tree in judged], ask, scope, store, now, onset, told=told))
    found += [walk(tree, scope, store_query(store, now), now, active_at) for tree in trees if not tree.is_judged]
    return max(found, key=lambda one: RANK[one.confidence])  # the first of equals


def judge(
    knowledge: Knowledge,
    trees: Sequence[str],
    ask: Sequence[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    now: float,
    onset: Onset | None = None,
    known: Readings | None = None,
    told: frozenset[str] = frozenset(),
) -> Diagnosis:
    """The causes of what the alerts of these trees, the gravest first, say of `scope` at Unix time `now`.

    `ask`: the questions that are shown in any case, in their order; no tree: of symptoms without an alert.
    `onset` None: what is asked about begins now. `known`: what was read already, of the same scope, time and onset.
    """
    onset = onset or alert_onset(now)
    known = known or {}
    left = [one for one in knowledge.questions.values() if one.id not in known]
    read = read_all(left, scope, store_query(store, now), asked_at(onset, store, now))
    readings = {name: known.get(name) or read[name] for name in knowledge.questions}
    ranking = rank_causes(knowledge.expectations, knowledge.questions, readings, trees, kind_of(scope))
    best = ranking.best
    age_s = now - onset.at
    found = _named(best, ranking, knowledge, scope, trees, readings, told, age_s) if best.causes else None
    if found is None or found.confidence == "unknown":
        found = _doubted(ranking, knowledge, scope, trees, readings, told, age_s)
    order = _order(ask, found, knowledge, readings)
    if (expects := _passes_unhurt(found, knowledge, readings)) is not None:
        order += [name for name in expects.hurts if name not in order]
        found = _nothing_wrong(expects, scope, starting_nodes(scope, store, now))
    said = {found.cause, found.also, found.runner_up}
    return replace(
        found,
        tree=trees[0] if trees else "",
        evidence=tuple(_told(readings[name], found, knowledge) for name in order),
        ruled_out=tuple(one.cause for one in ranking.excluded if one.cause not in said),
        why_not={
            one.cause: _answer_in_words(readings[one.question]) for one in ranking.excluded if one.question in readings
        },
        not_known=_gaps(order, knowledge, readings),
        changes=_changes(scope, store, now, onset),
        at=now,
        onset=onset.at,
        onset_early=onset.early,
        onset_late=onset.late,
    )


def with_pool(scope: Mapping[str, str], store: SeriesStore, now: float) -> Mapping[str, str]:
    """The scope with the pool that its nodes have in common: a zone's questions about its pool are known too."""
    if not scope or scope.get("node") or scope.get("pool"):
        return scope
    pools = {sample.labels.get("pool", "") for sample in evaluate(f"llm:up{{{scope_matcher(scope)}}}", store, now)}
    return {**scope, "pool": pools.pop()} if len(pools) == 1 and all(pools) else scope


def _onset_of_alerts(
    templates: Sequence[str],
    others: Sequence[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    active_at: float,
    now: float,
) -> Onset:
    """When what the alerts tell of began.

    Alerts as old as the record leave nothing to compare with, and those that have stood for hours are how it always is:
    where something has changed since, for good, that change is asked about; what the alerts tell of comes first. Where
    nothing changed at once, now is compared with an hour ago, or with as early as there is a past: what creeps up has
    no moment.
    """
    onset = onset_of_series(templates, scope, store, active_at, now)
    since = kept_since(store)
    if since is None or not has_always_stood(onset.at, onset.early, since, now):
        return onset
    for asked in (templates, others):
        later = onset_of_series(asked, scope, store, now, now, not_before=since + AGED_S)
        if onset.late < later.at < now:
            return later
    return replace(onset, past_until=min(now, max(since + AGED_S + LEAST_DRIFT_S, now - DRIFT_S)))


def has_always_stood(began: float, early: float, since: float, now: float) -> bool:
    """Whether what began then, or `early`, is as old as the record, which began at `since`, or how it always is."""
    age_s = now - began
    return age_s >= OLD_S or (early - since < AGED_S and age_s >= AGED_S)


def onset_of_series(
    templates: Iterable[str],
    scope: Mapping[str, str],
    store: SeriesStore,
    active_at: float,
    now: float,
    look_back_s: float = LOOK_BACK_S,
    not_before: float = -math.inf,
) -> Onset:
    """When what the alerts tell of began, by the trees' own symptom series for the scope."""
    since = kept_since(store)
    series = []
    for template in templates:
        query, why = bind_query(template, scope, AskedAt(now, active_at))
        if why:
            continue
        try:
            series.append(_symptom(query, store, active_at - look_back_s, now, since))
        except (BadExpressionError, QueryError):
            continue
    onset = find_onset(series, active_at, now, look_back_s, not_before)
    if since is None:
        return onset
    # Of a young record a past that may hold the first seconds of it says more than none.
    return replace(onset, early=min(onset.at, max(onset.early, since + LEAST_PAST_S)))


def _symptom(
    query: str, store: SeriesStore, start: float, end: float, since: float | None
) -> list[tuple[float, float]]:
    """The first series of a query, denser in the first minutes of the record. Raises BadExpressionError, QueryError."""
    young_until = start if since is None else since + YOUNG_S
    points: list[tuple[float, float]] = []
    if young_until > start:
        steps = math.ceil((young_until - start) / ONSET_STEP_S)  # the others stay on their grid
        last = min(end, start + steps * ONSET_STEP_S - YOUNG_STEP_S)
        young = evaluate_series(query, store, max(start, since or start), last, YOUNG_STEP_S)
        points += [point for _, found in young[:1] for point in found]
        start += steps * ONSET_STEP_S
    rest = evaluate_series(query, store, start, end, ONSET_STEP_S) if start <= end else []
    return points + [point for _, found in rest[:1] for point in found]


def _changes(scope: Mapping[str, str], store: SeriesStore, now: float, onset: Onset) -> tuple[str, ...]:
    told = evaluate(CHANGES_QUERY, store, now)
    seen = seen_untold(seen_changes(scope, store, now, onset), told)
    parts_of = [*told, *(one for one in seen if one.labels["kind"] in ("revision", "scale"))]
    return recent_changes([*told, *seen, *starts_untold(_starts(store, now, onset), parts_of)], scope, onset)


def _starts(store: SeriesStore, now: float, onset: Onset) -> list[Sample]:
    """When each process started, as it says now; of a node that says nothing any more, as it said before it began."""
    found = evaluate(STARTS_QUERY, store, now)
    known = {one.labels.get("node") for one in found}
    return found + [one for one in evaluate(STARTS_QUERY, store, onset.early) if one.labels.get("node") not in known]


def kind_of(scope: Mapping[str, str]) -> Place:
    """A node, a place of several, or the fleet."""
    return "node" if scope.get("node") else "pool" if scope else "fleet"


def _named(
    best: Fit,
    ranking: Ranking,
    knowledge: Knowledge,
    scope: Mapping[str, str],
    trees: Sequence[str],
    readings: Readings,
    told: frozenset[str],
    age_s: float,
) -> Diagnosis:
    """The best hypothesis in words, `age_s` after it began.

    Of two causes at work, one that can be behind the alerts is named first; of such two the one that leads to the
    other; else the one that fits better alone. One of `told` is named alone or not at all: it has an incident.
    """
    ruled_out = {one.cause for one in ranking.excluded}  # alone: beside another its `never` may be the other's doing
    elsewhere = {name for name in best.causes if trees and not knowledge.expectations[name].explains & set(trees)}
    causes = sorted(
        best.causes,
        key=lambda name: (
            name in told,
            name in elsewhere,
            knowledge.expectations[name].state,
            name in ruled_out,
            -ranking.probability_of(name),
        ),
    )
    cause = causes[0]
    expects = knowledge.expectations[cause]
    probability = ranking.probability_of(cause)
    also = causes[1] if len(causes) > 1 and causes[1] not in told else None
    near = _neighbours(cause, knowledge)
    runner = _runner_up(causes, probability, ranking.with_doubted, near)
    runner_probability = ranking.probability_of(runner) if runner is not None else None
    if runner_probability is not None and runner_probability < RUNNER_UP_FROM:
        runner_probability = None  # by what is known it is not likely: it is what nobody could rule out
    return Diagnosis(
        tree="",
        cause=cause,
        title=verdict_title(expects, knowledge.questions, scope, readings),
        confidence=_confidence(
            expects, probability, _family_probability(expects, ranking, knowledge, readings), readings, age_s
        ),
        probability=probability,
        also=also,
        runner_up=runner,
        runner_up_probability=runner_probability,
        tells_apart=_tells_apart(cause, runner, ranking, knowledge, readings) if runner is not None else "",
        awaits=_awaits(expects, readings),
        is_of_one="{{a_node}}" in expects.says and not scope.get("node"),
    )


def _doubted(
    ranking: Ranking,
    knowledge: Knowledge,
    scope: Mapping[str, str],
    trees: Sequence[str],
    readings: Readings,
    told: frozenset[str],
    age_s: float,
) -> Diagnosis:
    """Where nothing else fits: what one or two answers speak against, at most likely and not treated; else none."""
    looked = ranking.with_doubted
    best = looked.best
    if len(best.causes) == 1 and best.causes[0] in ranking.doubted:
        found = _named(best, looked, knowledge, scope, trees, readings, told, age_s)
        if found.confidence != "unknown" and (found.probability or 0.0) >= DOUBTED_FROM:
            against = _speaks_against(best.causes[0], ranking, readings)
            return replace(found, confidence="likely", awaits=found.awaits or f"something speaks against it: {against}")
    return _unnamed(looked, knowledge, readings)


def _speaks_against(cause: str, ranking: Ranking, readings: Readings) -> str:
    """The answer that speaks against a cause, in words; "" where none does."""
    found = next((one for one in ranking.excluded if one.cause == cause), None)
    return _answer_in_words(readings[found.question]) if found is not None and found.question in readings else ""


def _awaits(expects: Expectation, readings: Readings) -> str:
    """Why the cause is not to be treated yet; "" once one of what its page needs is seen, and nobody else does it."""
    seen = {name for name, one in readings.items() if one.answer == "yes"}
    if expects.acts_on and not seen & set(expects.acts_on):
        return expects.awaits
    return next((why for name, why in expects.left_while.items() if name in seen), "")


def _neighbours(cause: str, knowledge: Knowledge) -> set[str]:
    """The causes that it is told apart from, by its word or theirs."""
    own = knowledge.expectations[cause].tell_apart
    return {name for name, one in knowledge.expectations.items() if name in own or cause in one.tell_apart}


def _family_probability(expects: Expectation, ranking: Ranking, knowledge: Knowledge, readings: Readings) -> float:
    """Of a cause being at work that must show a sign which is seen, and which this one must show too."""

    def signs(one: Expectation) -> set[str]:
        return {name for group in one.must for name in group if name in readings and readings[name].answer == "yes"}

    own = signs(expects)
    family = {name for name, one in knowledge.expectations.items() if own & signs(one)}
    return sum(one.probability for one in ranking.fits if family.intersection(one.causes))


def _runner_up(causes: Sequence[str], probability: float, ranking: Ranking, near: set[str]) -> str | None:
    """The next best word: of a sure verdict what is likely beside it; else what one would look at next."""
    if probability < CONFIRMED_FROM and (found := ranking.next_to(causes, near)) is not None:
        return found
    runner = next((one.causes[0] for one in ranking.fits if one.causes and not set(one.causes) & set(causes)), None)
    # Beside a cause, another one that is at work only together with it is the next best word.
    runner = runner or next((name for one in ranking.fits for name in one.causes if name not in causes), None)
    if runner is not None and ranking.probability_of(runner) >= RUNNER_UP_FROM:
        return runner
    # None is likely: the neighbour that nothing which is told rules out.
    return ranking.untold_of(near - set(causes))


def asked_at(onset: Onset, store: SeriesStore, now: float) -> AskedAt:
    """When a question is asked about what began then."""
    return AskedAt(now, onset.compares_until, onset.late, began=onset.at, kept_since=kept_since(store))


def kept_since(store: SeriesStore) -> float | None:
    """When the record begins (Unix seconds)."""
    bounds = store.bounds()
    return None if bounds is None else bounds[0]


def _passes_unhurt(found: Diagnosis, knowledge: Knowledge, readings: Readings) -> Expectation | None:
    """What is at work, where it passes by itself and hurts nobody; None: it does, or nobody knows."""
    expects = knowledge.expectations.get(found.cause or "")
    if expects is None or not expects.hurts or found.also is not None:
        return None
    # Of an engine that has no time to the first token, or a node that nobody asks, the next that is told decides.
    hurts = [readings[name].answer for name in expects.hurts if name in readings and can_be_told(readings[name])]
    return None if "yes" in hurts or hurts[:1] != ["no"] else expects


def _nothing_wrong(expects: Expectation, scope: Mapping[str, str], starting: Sequence[str]) -> Diagnosis:
    where = {"where": scope_text(scope), "nodes": ", ".join(starting) or scope_text(scope)}
    what = PLACEHOLDER.sub(lambda match: where.get(match.group(1), match.group(0)), expects.unhurt)
    return Diagnosis("", None, f"Nothing is wrong: {what}, and users are served as promised", "confirmed")


def starting_nodes(scope: Mapping[str, str], store: SeriesStore, now: float) -> list[str]:
    """The nodes of the scope that load or warm up, by their own word or the controller's; else those just started."""
    where = scope_matcher(scope)
    told = f'fleet_node_phase{{phase="starting",{where}}} == 1'
    own = f'llm:node_state{{state=~"loading|warming_up",{where}}} == 1'
    for query in (f"{told} or {own}", f"llm:deploy_age_seconds{{{where}}} < {STARTED_LATELY_S:.0f}"):
        if found := {one.labels["node"] for one in evaluate(query, store, now) if one.labels.get("node")}:
            return sorted(found)
    return []


def _confidence(
    expects: Expectation, probability: float, of_family: float, readings: Readings, age_s: float
) -> Confidence:
    """`of_family`: the probability that it is at work, or another cause that must show what it must."""
    are_known = all(any(readings[name].answer == "yes" for name in group if name in readings) for group in expects.must)
    has_lasted = age_s >= expects.lasts_s
    if probability >= CONFIRMED_FROM and are_known and has_lasted and expects.at_most == "confirmed":
        return "confirmed"
    if are_known and of_family >= FAMILY_FROM and probability >= LIKELIEST_FROM:
        return "likely"
    return "likely" if probability >= (LIKELY_FROM if are_known else LIKELY_UNSEEN_FROM) else "unknown"


def _unnamed(ranking: Ranking, knowledge: Knowledge, readings: Readings) -> Diagnosis:
    """None of ours fits: what it could be, and what one would need to know."""
    if readings and all(one.answer == "unknown" for one in readings.values()):
        return Diagnosis("", None, "Could not look: no question had a fresh answer")
    candidates = [name for one in ranking.fits if len(one.causes) == 1 for name in one.causes][:2]
    expecting = _expecting_what_is_rare(knowledge, readings)
    if_told = {name: one for name, one in {**ranking.untold, **ranking.if_told}.items() if name in expecting}
    if if_told:
        candidates = list(dict.fromkeys((max(if_told, key=lambda name: (if_told[name], name)), *candidates)))[:2]
    title = "No known cause fits what was measured"
    if candidates:
        title += f"; nearest: {' or '.join(candidates)}"
    runner = candidates[0] if candidates else None
    wanted = _wanted(knowledge, readings, {one.cause for one in ranking.excluded})
    return Diagnosis(
        tree="",
        cause=None,
        title=title,
        runner_up=runner,
        runner_up_probability=ranking.probability_of(runner) if runner else None,
        tells_apart=f"It would help to know: {' '.join(wanted)}" if wanted else "",
    )


def _expecting_what_is_rare(knowledge: Knowledge, readings: Readings) -> set[str]:
    """The causes that may bring about what is hardly ever seen, and is: told or not.

    A sign that a cause must show is its own: whoever else may show it is no nearer.
    """
    own = {name for one in knowledge.expectations.values() for group in one.must for name in group}
    rare = {
        name
        for name, one in readings.items()
        if one.answer == "yes" and knowledge.questions[name].base <= RARE_UNTIL and name not in own
    }
    return {
        name
        for name, one in knowledge.expectations.items()
        if any(one.yes_rates.get(sign, 0.0) > knowledge.questions[sign].base for sign in rare)
    }


def _wanted(knowledge: Knowledge, readings: Readings, excluded: set[str]) -> list[str]:
    """Questions without an answer that most causes hang on, in words."""
    weight: dict[str, float] = {}
    for name, one in knowledge.expectations.items():
        for question in (q for group in one.must for q in group):
            if name not in excluded and question in readings and readings[question].answer == "unknown":
                weight[question] = weight.get(question, 0.0) + one.prior
    best = sorted(weight, key=lambda question: (-weight[question], question))[:MAX_WANTED]
    return [readings[question].title for question in best]


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


def _tells_apart(cause: str, runner: str, ranking: Ranking, knowledge: Knowledge, readings: Readings) -> str:
    if runner in ranking.doubted:
        return f"What speaks against {runner}: {_speaks_against(runner, ranking, readings)}"
    first, second = knowledge.expectations[cause], knowledge.expectations[runner]
    question = telling_question(first, second, cause, runner, readings, list(knowledge.questions))
    if question is None or question not in readings:
        return ""
    a, b = first.yes_rates.get(question, 0.1), second.yes_rates.get(question, 0.1)
    yes, no = (cause, runner) if a >= b else (runner, cause)
    return f"{readings[question].title} Yes: {yes}, no: {no} (it is {_answer_in_words(readings[question], short=True)})"


def _answer_in_words(one: Evidence, *, short: bool = False) -> str:
    said = one.answer if one.answer != "unknown" else f"unknown: {one.why_unknown}"
    is_flag = one.unit == "count" and one.value in (0, 1)  # "no, 1" of a flag that is 1 where all is well helps nobody
    value = f", {format_value(one.value, one.unit)}" if one.value is not None and not is_flag else ""
    return f"{said}{value}" if short else f"{one.title} {said}{value}"


def _order(ask: Sequence[str], found: Diagnosis, knowledge: Knowledge, readings: Readings) -> list[str]:
    """What is shown: the trees' questions, those that decided, and whatever else is unusual."""
    shown = list(ask)
    for cause in (found.cause, found.also, found.runner_up):
        expects = knowledge.expectations.get(cause or "")
        if expects is not None:
            shown += [name for group in expects.must for name in group]
            shown += [name for name in expects.often if readings.get(name) and readings[name].answer != "unknown"]
    shown += [name for name, one in readings.items() if one.answer == "yes"]
    return [name for name in dict.fromkeys(shown) if name in readings]


def _told(one: Evidence, found: Diagnosis, knowledge: Knowledge) -> Evidence:
    if found.cause is None or one.answer == "unknown":
        return one
    base = knowledge.questions[one.question].base
    rates: dict[str, float] = {}
    for cause in (found.also, found.cause):
        if cause is not None:
            rates |= knowledge.expectations[cause].yes_rates
    rate = rates.get(one.question)
    if rate is None:
        return replace(one, speaks="against") if one.answer == "yes" and base <= ORDINARY_FROM else one
    is_for = (rate > base) == (one.answer == "yes")
    speaks: Speaks = "for" if is_for else "against"
    if rate < 0.5 and rate > base and one.answer == "no":
        speaks = ""  # it may be seen; that it is not says little
    return replace(one, speaks=speaks)


def _gaps(order: Sequence[str], knowledge: Knowledge, readings: Readings) -> tuple[str, ...]:
    return tuple(
        f"{readings[name].title} ({readings[name].why_unknown})"
        for name in order
        if readings[name].answer == "unknown" and not knowledge.questions[name].optional
    )
