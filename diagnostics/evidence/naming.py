"""The verdict of a ranking: which cause is named and how sure that is, what comes next, or that none fits. Pure.

Of two causes at work one is named first; a cause that something speaks against is doubted (decision 82).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from diagnostics.diagnosis import Confidence, Diagnosis
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.evidence.reading import Readings
from diagnostics.evidence.score import Fit, Ranking, telling_question
from diagnostics.evidence.verdict_title import answer_in_words, verdict_title
from diagnostics.expectation import Expectation

CONFIRMED_FROM = 0.9
LIKELY_FROM = 0.33
LIKELY_UNSEEN_FROM = 0.85  # where one of its musts could not be answered
DOUBTED_FROM = 0.8  # where an answer speaks against it
# Where one of those that must show the same sign is at work for certain, the likeliest is named, from a quarter on.
FAMILY_FROM = 0.8
LIKELIEST_FROM = 0.25
RUNNER_UP_FROM = 0.02
RARE_UNTIL = 0.02  # a sign that is so rare where nothing that expects it is at work
MAX_WANTED = 5  # unknown answers that "none of mine" names


@dataclass(frozen=True, slots=True)
class Look:
    """What a ranking is of."""

    knowledge: Knowledge
    scope: Mapping[str, str]
    trees: Sequence[str]  # of the alerts that stand, the gravest first
    readings: Readings
    told: frozenset[str]  # causes that other incidents were given
    age_s: float  # since it began


def verdict(ranking: Ranking, look: Look) -> Diagnosis:
    """What is named; else what is doubted, or that no cause fits."""
    found = _named(ranking.best, ranking, look) if ranking.best.causes else None
    return found if found is not None and found.confidence != "unknown" else _doubted(ranking, look)


def _named(best: Fit, ranking: Ranking, look: Look) -> Diagnosis:
    """The best hypothesis in words.

    Of two causes at work, one that can be behind the alerts is named first; of such two one that may stand alone: what
    rules the other out is its doing; then the one that leads to the other; else the one that fits better alone. One of
    `told` is named alone or not at all: it has an incident.
    """
    knowledge, readings, told = look.knowledge, look.readings, look.told
    ruled_out = {one.cause for one in ranking.excluded}  # alone: beside another its `never` may be the other's doing
    elsewhere = {
        name for name in best.causes if look.trees and not knowledge.expectations[name].explains & set(look.trees)
    }
    causes = sorted(
        best.causes,
        key=lambda name: (
            name in told,
            name in elsewhere,
            name in ruled_out,
            knowledge.expectations[name].state,
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
        title=verdict_title(expects, knowledge.questions, look.scope, readings),
        confidence=_confidence(
            expects, probability, _family_probability(expects, ranking, knowledge, readings), readings, look.age_s
        ),
        probability=probability,
        also=also,
        runner_up=runner,
        runner_up_probability=runner_probability,
        tells_apart=_tells_apart(cause, runner, ranking, knowledge, readings) if runner is not None else "",
        awaits=_awaits(expects, readings),
        is_of_one="{{a_node}}" in expects.says and not look.scope.get("node"),
    )


def _doubted(ranking: Ranking, look: Look) -> Diagnosis:
    """Where nothing else fits: what one or two answers speak against, at most likely and not treated; else none."""
    looked = ranking.with_doubted
    best = looked.best
    if len(best.causes) == 1 and best.causes[0] in ranking.doubted:
        found = _named(best, looked, look)
        if found.confidence != "unknown" and (found.probability or 0.0) >= DOUBTED_FROM:
            against = _speaks_against(best.causes[0], ranking, look.readings)
            return replace(found, confidence="likely", awaits=found.awaits or f"something speaks against it: {against}")
    return _unnamed(looked, look.knowledge, look.readings)


def _speaks_against(cause: str, ranking: Ranking, readings: Readings) -> str:
    """The answer that speaks against a cause, in words; "" where none does."""
    found = next((one for one in ranking.excluded if one.cause == cause), None)
    return answer_in_words(readings[found.question]) if found is not None and found.question in readings else ""


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


def _missing_must(expects: Expectation, readings: Readings) -> str | None:
    """The first question of what a cause must show that nobody answers."""
    musts = (name for group in expects.must for name in group)
    return next((name for name in musts if name in readings and readings[name].answer == "unknown"), None)


def _tells_apart(cause: str, runner: str, ranking: Ranking, knowledge: Knowledge, readings: Readings) -> str:
    if runner in ranking.doubted:
        return f"What speaks against {runner}: {_speaks_against(runner, ranking, readings)}"
    first, second = knowledge.expectations[cause], knowledge.expectations[runner]
    question = telling_question(first, second, cause, runner, readings, list(knowledge.questions))
    is_known = question is not None and question in readings and readings[question].answer != "unknown"
    if is_known and runner in ranking.untold:
        question = _missing_must(second, readings) or question  # what is known has not told them apart
    if question is None or question not in readings:
        return ""
    a, b = first.yes_rates.get(question, 0.1), second.yes_rates.get(question, 0.1)
    yes, no = (cause, runner) if a >= b else (runner, cause)
    return f"{readings[question].title} Yes: {yes}, no: {no} (it is {answer_in_words(readings[question], short=True)})"
