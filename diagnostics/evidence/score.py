"""Which causes fit what was read, and how well: every cause, every pair, and none of them. Pure.

A hypothesis' score is the sum of log-likelihood ratios against a background in which nothing is at work (naive Bayes
over the answers that are known): a yes that it expects speaks for it, a yes that it does not mention speaks for those
that do, a no where it expects a yes speaks against it. Questions are not independent of each other (a queue and the
TTFT rise together), so the sum is tempered before it becomes a probability; `TEMPERATURE` is fitted on the benchmark
(docs/diagnosis-benchmark.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import combinations

from diagnostics.evidence.question import Question
from diagnostics.evidence.reading import Readings, is_told_by_now
from diagnostics.expectation import MAY_YES, OFTEN_YES, ONE_OF_YES, Expectation

TEMPERATURE = 1.6
EXPLAINED = 0.9  # how often a cause at work raises an alert of a tree that it explains
STRAY_ALERT = 0.05  # and one of a tree that it does not
PAIR_PRIOR = 0.1  # two faults that begin together are rarer than either; a must of its own outweighs it
NONE_PRIOR = 0.03
UNSEEN_MUST = 0.03  # for each must that is not seen and may be: what is seen is believed before what can't be
# And once more of a cause of which nothing that it must show is seen. When it was not weighed at all, half of what was
# said with 95 % and more was wrong of a set of incidents that nobody had tuned for (decision 91).
UNTOLD = 0.05
NONE_YES = 0.15  # what no cause of ours is behind shows in something
NEAR = 1.5  # on the score of a runner-up that the named cause, or itself, is told apart from: 4.5 times as likely
# What a doubted cause is charged beyond what its rates say, for each must that is a fresh no and each `never` that is a
# yes. No one question is certain (a mean of a few prompts, an order just before): where an incident from elsewhere was
# named wrong, every true cause had been ruled out by such an answer in 31 of 78 verdicts (decision 82).
CONTRADICTED = 2.0
MAX_CONTRADICTED = 2
TELLING = 0.01  # a yes that is so rare without its causes tells of one of them, whatever else is seen
RARE = 0.02  # and one that is so rare of a cause that its alert names, or beside another that leaves it over
LEFT_OVER = math.log(1 / TELLING)  # two rare signs: what is a fifth slower by chance leaves one, or none
MAX_PAIRED = 12  # causes that are tried in pairs: those that fit best alone


@dataclass(frozen=True, slots=True)
class Excluded:
    """A cause that what was read rules out."""

    cause: str
    question: str  # whose answer did it


@dataclass(frozen=True, slots=True)
class Fit:
    """One hypothesis: no cause of ours, one, or two."""

    causes: tuple[str, ...]
    score: float  # log-likelihood ratio against the background, prior included
    probability: float


@dataclass(frozen=True)
class Ranking:
    """All hypotheses, best first, and what was ruled out or is doubted."""

    fits: tuple[Fit, ...]
    excluded: tuple[Excluded, ...]
    # Of each cause that may stand alone its score, were each must that nobody can tell a yes.
    if_told: Mapping[str, float] = field(default_factory=dict)
    # And of those of which nothing that they must show is seen, since nobody tells it or some of it: they are among
    # the fits, but never named, only next.
    untold: Mapping[str, float] = field(default_factory=dict)
    # Of those that one or two answers speak against, and something for: next, or likely where nothing else fits.
    doubted: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def with_doubted(self) -> Ranking:
        """The same, what is doubted among it."""
        scores = {one.causes: one.score for one in self.fits} | {(name,): one for name, one in self.doubted.items()}
        return replace(self, fits=_normalised(scores), if_told={**self.if_told, **self.doubted}, doubted={})

    def next_to(self, named: Sequence[str], near: Set[str]) -> str | None:
        """What to look at next where the verdict is not sure.

        What nobody can tell keeps a cause from being named before those that are seen, and is what a person would find
        out: it does not count against the runner-up.
        """
        left = {name: score + NEAR * (name in near) for name, score in self.if_told.items() if name not in named}
        left |= {name: score for name, score in self.untold.items() if name in near and name not in named}
        return max(left, key=lambda name: (left[name], name), default=None)

    def untold_of(self, names: Set[str]) -> str | None:
        """Of these the one that fits best, of those of which nothing that they must show is seen or ruled out."""
        left = {name: score for name, score in self.untold.items() if name in names}
        return max(left, key=lambda name: (left[name], name), default=None)

    @property
    def best(self) -> Fit:
        """The likeliest of which something is seen, unless another cause is likelier by all in which it takes part:
        then the likeliest of those. A verdict whose runner-up is likelier than its cause helps nobody."""
        seen = [one for one in self.fits if not self.untold.keys() & set(one.causes)]
        first = seen[0]
        if not first.causes:
            return first
        likeliest = max(sorted({name for one in seen for name in one.causes}), key=self.probability_of)
        if self.probability_of(likeliest) <= max(map(self.probability_of, first.causes)):
            return first
        return next(one for one in seen if likeliest in one.causes)

    def probability_of(self, cause: str) -> float:
        """Of the cause being at work, alone or beside another."""
        return sum(one.probability for one in self.fits if cause in one.causes)


def rank_causes(
    expectations: Mapping[str, Expectation],
    questions: Mapping[str, Question],
    readings: Readings,
    families: Iterable[str],
    kind: str,
) -> Ranking:
    """Every hypothesis with its probability.

    `families`: the trees of the alerts that stand. `kind`: node, pool or fleet. A cause takes part when each of its
    `must` groups may still hold, one of them does, and none of its `never` does; one that all but holds is doubted.
    """
    families = frozenset(families)
    known = {name: one.answer == "yes" for name, one in readings.items() if one.answer != "unknown"}
    taking_part: dict[str, Expectation] = {}
    untold: dict[str, float] = {}
    doubted: dict[str, float] = {}
    excluded: list[Excluded] = []
    pairable: dict[str, Expectation] = {}  # those that only a never excludes: beside another cause it need not hold
    for name, one in expectations.items():
        if kind not in one.where:
            continue
        ended, contrary = _ended(one, known), [question for question in one.never if known.get(question)]
        against = [*ended, *contrary]
        is_seen = [any(known.get(question) for question in group) for group in one.must]
        if not one.only_seen and not against and not any(is_seen) and _is_untold(one, readings):
            untold[name] = _in_place(one, _score(one.yes_rates, known, questions), families)
        is_shown = any(is_seen) and (all(is_seen) or not one.only_seen)
        if ended or (contrary and is_shown):
            excluded.append(Excluded(name, against[0]))
        if not is_shown:
            continue
        if not ended:
            pairable[name] = one
        if not against:
            taking_part[name] = one
        elif len(against) <= MAX_CONTRADICTED and not any(
            questions[name].certain for name in contrary if name in questions
        ):
            signs = _score(one.yes_rates, known, questions) + _unseen_score(one, known)
            doubted[name] = _in_place(one, signs, families) - CONTRADICTED * len(against)
    rates = {name: one.yes_rates for name, one in pairable.items()}
    scores: dict[tuple[str, ...], float] = {(): math.log(NONE_PRIOR) + _none_score(known, questions)}
    alone = {name: _score(rates[name], known, questions) + _unseen_score(pairable[name], known) for name in pairable}
    if_told: dict[str, float] = {}
    for name, one in taking_part.items():
        scores[(name,)] = _in_place(one, alone[name], families)
        if_told[name] = scores[(name,)] - _unseen_score(one, known)
    tried = sorted(pairable, key=lambda name: -alone[name])[:MAX_PAIRED]
    likeliest = max(taking_part, key=lambda name: (scores[(name,)], name), default="")
    for first, second in combinations(tried, 2):
        if (score := _pair_score(first, second, likeliest, pairable, rates, known, questions, families)) is not None:
            scores[(first, second)] = score
    of_alerts = _of_the_alerts(scores, taking_part, known, questions, families)
    weighed: dict[tuple[str, ...], float] = {
        (name,): score + _unseen_score(expectations[name], known) + math.log(UNTOLD) for name, score in untold.items()
    }
    return Ranking(_normalised({**of_alerts, **weighed}), tuple(excluded), if_told, untold, doubted)


def _of_the_alerts(
    scores: Mapping[tuple[str, ...], float],
    taking_part: Mapping[str, Expectation],
    known: Mapping[str, bool],
    questions: Mapping[str, Question],
    families: frozenset[str],
) -> Mapping[tuple[str, ...], float]:
    """Where what fits best can be behind none of the alerts: what has a cause that can, and that is told by itself.

    A budget that is spent has its own alert, its own word, and no other symptom; beside it a pool may be slow for many
    reasons, of which its incident is not.
    """
    best = max(scores, key=lambda causes: scores[causes])
    explaining = {name: one for name, one in taking_part.items() if one.explains & families}
    if not best or not families or any(name in explaining for name in best):
        return scores
    told = {
        name
        for name, one in explaining.items()
        if all(any(known.get(question) for question in group) for group in one.must)
        and any(known.get(question) and questions[question].base <= RARE for group in one.must for question in group)
    }
    return {causes: score for causes, score in scores.items() if told.intersection(causes)} or scores


def _is_untold(one: Expectation, readings: Readings) -> bool:
    """Whether of all that it must show nobody tells something by now."""
    return all(any(name not in readings or not is_told_by_now(readings[name]) for name in group) for group in one.must)


def _ended(one: Expectation, known: Mapping[str, bool]) -> list[str]:
    """The first question of each `must` group of which all are a fresh no."""
    return [group[0] for group in one.must if all(name in known and not known[name] for name in group)]


def _in_place(one: Expectation, signs: float, families: frozenset[str]) -> float:
    """The score of a cause alone: of its signs, how common it is, and the alerts that stand."""
    return math.log(one.prior) + signs + _alerts_score(one.explains, families)


def _score(rates: Mapping[str, float], known: Mapping[str, bool], questions: Mapping[str, Question]) -> float:
    parts = []  # `fsum`: in whatever order, the sum is the same to the last bit, and what fits alike stays alike
    for name, rate in rates.items():
        if name in known and name in questions:
            base = questions[name].base
            if known[name]:
                parts.append(math.log(rate / base))
            elif (
                rate > ONE_OF_YES or rate < base
            ):  # that what only may be seen, or another is, is not seen says nothing
                parts.append(math.log((1 - rate) / (1 - base)))
    return math.fsum(parts)


def _unseen_score(one: Expectation, known: Mapping[str, bool]) -> float:
    """For musts that nobody can answer: a cause that is seen is the better guess."""
    unseen = [group for group in one.must if not any(known.get(name) for name in group)]
    return math.log(UNSEEN_MUST) * (len(unseen) - len(_ended(one, known)))


def _none_score(known: Mapping[str, bool], questions: Mapping[str, Question]) -> float:
    return math.fsum(
        math.log(max(NONE_YES, questions[name].base) / questions[name].base)
        for name, is_yes in known.items()
        if is_yes and name in questions
    )


def _alerts_score(explains: frozenset[str], families: frozenset[str]) -> float:
    return math.fsum(math.log(EXPLAINED if family in explains else STRAY_ALERT) for family in families)


def _pair_score(
    first: str,
    second: str,
    likeliest: str,
    pairable: Mapping[str, Expectation],
    rates: Mapping[str, Mapping[str, float]],
    known: Mapping[str, bool],
    questions: Mapping[str, Question],
    families: frozenset[str],
) -> float | None:
    """Two at work: a yes of the one that expects it more.

    `likeliest`: of those that fit alone. None: each must explain a must of its own that the other does not, and every
    must of both has to be seen. Of a node that is gone, nothing but its death is known: a change before it is no second
    fault.
    """
    one, other = pairable[first], pairable[second]
    if one.alone or other.alone:
        return None
    if not all(any(known.get(question) for question in group) for each in (one, other) for group in each.must):
        return None
    for mine, beside, name in ((one, other, second), (other, one, first)):
        others = rates[name]
        own = {question for group in mine.must for question in group if known.get(question)}
        own = {question for question in own if others.get(question, 0.0) < 0.05}
        if not own:
            return None
        # What rules it out alone must be the other's doing, not only no surprise beside it: what that mostly has; where
        # next to nothing but mine brings its own about, one of what it must have; and of the likeliest all that it may
        # bring about, where it leaves signs of mine over that, taken together, are as rare without it.
        doing = {question for question, rate in others.items() if rate >= OFTEN_YES}
        if any(questions[question].base <= TELLING for question in own):
            doing |= {question for group in beside.must for question in group}
        if name == likeliest and _left_over(mine, others, known, questions) >= LEFT_OVER:
            doing |= {seen for seen, rate in others.items() if rate >= MAY_YES and not questions[seen].certain}
        if any(known.get(question) and question not in doing for question in mine.never):
            return None
    # The likelier of the two, not either: two causes that may both bring a queue about explain it no better than one
    # does, else each consequence that they share would speak for the pair.
    joint = {
        name: max(rates[first].get(name, 0.0), rates[second].get(name, 0.0))
        for name in rates[first].keys() | rates[second].keys()
    }
    prior = math.log(PAIR_PRIOR * one.prior * other.prior)
    return prior + _score(joint, known, questions) + _alerts_score(one.explains | other.explains, families)


def _left_over(
    mine: Expectation, others: Mapping[str, float], known: Mapping[str, bool], questions: Mapping[str, Question]
) -> float:
    """How much speaks for a cause of what it must show, is rare without it, and another one does not bring about."""
    signs = {name for group in mine.must for name in group if known.get(name) and questions[name].base <= RARE}
    left = {name: mine.yes_rates[name] for name in signs if others.get(name, 0.0) < MAY_YES}
    return _score(left, known, questions)


def _normalised(scores: Mapping[tuple[str, ...], float]) -> tuple[Fit, ...]:
    top = max(scores.values())
    weights = {causes: math.exp((score - top) / TEMPERATURE) for causes, score in scores.items()}
    total = sum(weights.values())
    fits = [Fit(causes, scores[causes], weight / total) for causes, weight in weights.items()]
    return tuple(sorted(fits, key=lambda one: (-one.probability, one.causes)))


def telling_question(
    first: Expectation,
    second: Expectation,
    first_name: str,
    second_name: str,
    readings: Readings,
    order: Sequence[str],
) -> str | None:
    """The question whose answer would tell two causes apart best: the one that they name, else of those unknown the one
    on which they differ most, else of all."""
    named = first.tell_apart.get(second_name) or second.tell_apart.get(first_name)
    if named is not None:
        return named
    a, b = first.yes_rates, second.yes_rates
    gaps = {name: abs(a.get(name, 0.1) - b.get(name, 0.1)) for name in order if name in a or name in b}
    unknown = {name: gap for name, gap in gaps.items() if name in readings and readings[name].answer == "unknown"}
    pool = unknown if max(unknown.values(), default=0.0) >= 0.5 else gaps
    return max(pool, key=lambda name: pool[name], default=None)
