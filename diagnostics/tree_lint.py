"""What is wrong with trees, questions and causes although every file of them can be read.

What refers to something that is not there is found when content is loaded; here is what loads and misleads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from diagnostics.cause import Cause
from diagnostics.evidence.knowledge import Knowledge
from diagnostics.expectation import NEVER_YES
from diagnostics.query import sample_query
from diagnostics.tree import CONTINUE, END, Tree
from diagnostics.tree_view import unused_questions

EnginesOf = Callable[[str], frozenset[str]]
"""A PromQL expression to the engines that can answer it."""

MIN_REASON_WORDS = 4
_OF_DEPLOY = ('kind="deploy"', "by (revision)")  # in the query of a question that tells of one
_NO_WAY = "lead one there, or drop it"


@dataclass(frozen=True, slots=True)
class TreeFinding:
    """One fault. `line` counts from 1, 0 where it is not known."""

    severity: Literal["error", "warning"]
    place: str
    reason: str
    remedy: str = ""
    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}: " if self.file else ""
        return f"{where}{self.severity}: {self.place}: {self.reason}" + (f"; {self.remedy}" if self.remedy else "")


def lint_trees(
    trees: Mapping[str, Tree], causes: Mapping[str, Cause], knowledge: Knowledge, engines_of: EnginesOf
) -> list[TreeFinding]:
    """Everything that is found, by place."""
    found = [
        *_questions(trees, knowledge, engines_of),
        *_causes(trees, causes, knowledge),
        *(one for tree in trees.values() for one in _tree(tree)),
    ]
    return sorted(found, key=lambda one: (one.severity != "error", one.place, one.reason))


def _questions(trees: Mapping[str, Tree], knowledge: Knowledge, engines_of: EnginesOf) -> Iterator[TreeFinding]:
    unused = set(unused_questions(trees.values(), knowledge))
    for one in knowledge.questions.values():
        place = f"question {one.id}"
        if one.id in unused:
            yield TreeFinding(
                "warning",
                place,
                "nobody asks it",
                "name it in a cause or a tree's `ask`, or drop it",
                one.file,
                one.line,
            )
        if len(one.because.split()) < MIN_REASON_WORDS and not one.because.startswith("As "):  # as another one's
            remedy = "say what number it rests on: a measurement, noise, a promise"
            yield TreeFinding("warning", place, f"its limit has no reason: {one.because!r}", remedy, one.file, one.line)
        if one.unless is not None and one.when.holds(one.unless.bound) and one.unless.holds(one.when.bound):
            yield TreeFinding("error", place, "its yes and its no overlap", "part them", one.file, one.line)
        for key, template in (("query", one.query), ("pool_query", one.pool_query)):
            if template is None:
                continue
            engines = engines_of(sample_query(template))
            if not engines:
                reason = f"its {key} reads what no engine gives together"
                remedy = "`fleetctl alerts coverage` has who gives what"
                yield TreeFinding("error", place, reason, remedy, one.file, one.line)
            elif engines == {"fleetctl"} and not one.optional:
                reason = f"its {key} is answered by our own engine only"
                yield TreeFinding("warning", place, reason, "mark it `optional`", one.file, one.line)


def _causes(trees: Mapping[str, Tree], causes: Mapping[str, Cause], knowledge: Knowledge) -> Iterator[TreeFinding]:
    walked_to = {verdict.cause for tree in trees.values() for verdict in tree.verdicts.values()}
    tells_deploy = {one.id for one in knowledge.questions.values() if any(word in one.query for word in _OF_DEPLOY)}
    alike: dict[tuple[object, ...], str] = {}
    for cause in causes.values():
        place, at = f"cause {cause.name}", (cause.file, cause.line)
        if not cause.page and not cause.no_page:
            yield TreeFinding("error", place, "no page, and no word why", "write `page` or `no_page`", *at)
        expects = cause.expects
        if cause.not_by_deploy and expects is not None:
            for name in expects.names & tells_deploy:
                if expects.yes_rates.get(name, NEVER_YES) > NEVER_YES:
                    remedy = "drop one of the two: what a deploy brings about may be taken back with it"
                    yield TreeFinding("error", place, f"`not_by_deploy`, and expects {name}", remedy, *at)
        if expects is None:
            if cause.name not in walked_to:
                yield TreeFinding("warning", place, "nothing can name it", "say what it `must` show", *at)
            continue
        if not any(trees[name].is_judged for name in expects.explains if name in trees):
            yield TreeFinding("warning", place, "no tree that is judged is in its `explains`", "", *at)
        shape = (frozenset(map(frozenset, expects.must)), frozenset(expects.never), expects.where)
        other = alike.setdefault((*shape, frozenset(expects.often)), cause.name)
        if other != cause.name and not _are_told_apart(cause.name, other, knowledge):
            yield TreeFinding("warning", place, f"expects what {other} expects", "say what tells them apart", *at)


def _are_told_apart(first: str, second: str, knowledge: Knowledge) -> bool:
    a, b = knowledge.expectations[first], knowledge.expectations[second]
    return second in a.tell_apart or first in b.tell_apart


def _tree(tree: Tree) -> Iterator[TreeFinding]:
    place = f"tree {tree.name}"
    if tree.is_judged:
        if not tree.onset:
            remedy = "name its symptom's series in `onset`"
            yield TreeFinding("warning", place, "the beginning is taken from the alerts, which are late", remedy)
        for name in _twice(tree.ask):
            yield TreeFinding("warning", place, f"asks {name} twice")
        return
    reached = _reached(tree)
    for question in tree.questions:
        if question.id not in reached:
            yield TreeFinding(
                "error", place, f"no branch leads to question {question.id}", "lead one there, or drop it"
            )
    for verdict in tree.verdicts:
        if verdict not in reached:
            yield TreeFinding("error", place, f"no branch leads to verdict {verdict}", _NO_WAY)


def _reached(tree: Tree) -> set[str]:
    """Questions and verdicts that some answers lead to."""
    following = {one.id: tree.questions[i + 1].id for i, one in enumerate(tree.questions[:-1])}
    by_id = {one.id: one for one in tree.questions}
    waiting, reached = [tree.questions[0].id] if tree.questions else [], set[str]()
    while waiting:
        name = waiting.pop()
        if name in reached or name == END:
            continue
        reached.add(name)
        question = by_id.get(name)
        if question is not None:
            targets = (question.if_yes, question.if_no, question.if_unknown)
            waiting += [following.get(name, END) if target == CONTINUE else target for target in targets]
    return reached


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    return [name for name in names if name in seen or seen.add(name)]  # type: ignore[func-returns-value]
