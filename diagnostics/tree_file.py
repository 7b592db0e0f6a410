"""From YAML files to trees, with every fault named by file, line and question; and the alerts that have no tree."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from alerts.errors import BadExpressionError
from alerts.promql import parse
from alerts.promql.nodes import Call, Node, Selector, children, windows_up_to_now
from diagnostics.cause import builtin_causes
from diagnostics.content_file import (
    BadContentFileError,
    ContentFile,
    Problem,
    entry_place,
    nearest,
    read_content_file,
    unknown,
    validate,
)
from diagnostics.query import PLACEHOLDER, QUERY_PLACEHOLDERS, sample_query
from diagnostics.tree import CONTINUE, END, Limit, Question, Tree, Verdict
from diagnostics.value_format import Unit, format_seconds

NO_TREE_FILE = "no_tree.yaml"
IDENTIFIER = r"^[a-z][a-z0-9_]{0,63}$"
LONG_WINDOW_S = 300.0  # from here on a window is a past to compare with; shorter ones smooth what is now
_LIMIT = re.compile(r"^(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?)$")
_TITLE_PLACEHOLDERS = ("where", "value", "node", "pool", "model")


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, str_strip_whitespace=True)


class _QuestionForm(_Form):
    id: str = Field(pattern=IDENTIFIER)
    ask: str = Field(min_length=1, max_length=200)
    query: str = Field(min_length=1, max_length=2000)
    pool_query: str | None = Field(default=None, min_length=1, max_length=2000)
    when: str = Field(pattern=_LIMIT.pattern)
    unit: Unit
    rules_out: str | None = None
    if_yes: str
    if_no: str = CONTINUE
    if_unknown: str = CONTINUE
    optional: bool = False
    window_ends_now: str = Field(default="", max_length=500)  # why a long window may contain what is asked about
    note: str = Field(default="", max_length=1000)  # why this limit; for the reader of the file


class _VerdictForm(_Form):
    id: str = Field(pattern=IDENTIFIER)
    cause: str
    title: str = Field(min_length=1, max_length=300)
    at_most: Literal["confirmed", "likely"] = "confirmed"


class _TreeForm(_Form):
    tree: str = Field(pattern=IDENTIFIER)
    title: str = Field(min_length=1, max_length=200)
    symptoms: list[str] = Field(min_length=1, max_length=50)
    stands_alone: list[str] = Field(default_factory=list, max_length=50)
    max_age_s: float = Field(default=60.0, gt=0, le=3600)
    questions: list[_QuestionForm] = Field(default_factory=list, max_length=100)
    verdicts: list[_VerdictForm] = Field(default_factory=list, max_length=100)
    ask: list[Annotated[str, Field(pattern=IDENTIFIER)]] = Field(default_factory=list, max_length=200)
    onset: list[Annotated[str, Field(min_length=1, max_length=2000)]] = Field(default_factory=list, max_length=10)

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if not self.ask and not (self.questions and self.verdicts):
            raise ValueError("give `ask`, names of questions; or `questions` and `verdicts` with branches of its own")
        return self


class _NoTreeForm(RootModel[dict[str, Annotated[str, Field(min_length=1, max_length=500)]]]):
    model_config = ConfigDict(strict=True)


def builtin_tree_files() -> list[Path]:
    """The trees that ship with the package, sorted by name."""
    return sorted((Path(__file__).parent / "trees").glob("*.yaml"))


def builtin_no_tree_file() -> Path:
    """Our alerts that no tree explains, with what to do instead."""
    return Path(__file__).parent / NO_TREE_FILE


def load_trees(paths: Iterable[Path], causes: Collection[str] | None = None) -> dict[str, Tree]:
    """All trees of `paths` by name. `causes`: the names that they may use; None: those of the package.

    Raises:
        BadContentFileError: files can't be read or used, two trees share a name, or two explain the same alert. It
            has every problem of every file.
    """
    known = builtin_causes() if causes is None else causes
    trees: dict[str, Tree] = {}
    owner: dict[str, str] = {}  # alert -> tree
    problems: list[Problem] = []
    for path in paths:
        try:
            tree = read_tree_file(path, known)
        except BadContentFileError as error:
            problems += error.problems
            continue
        if tree.name in trees:
            problems.append(Problem(str(path), f"tree {tree.name} is defined twice", "rename one"))
            continue
        for symptom in tree.symptoms:
            if symptom in owner:
                reason = f"alert {symptom} is already explained by tree {owner[symptom]}"
                problems.append(Problem(str(path), reason, "an alert belongs to one tree", "symptoms"))
            owner[symptom] = tree.name
        trees[tree.name] = tree
    if problems:
        raise BadContentFileError(problems)
    return trees


def load_no_tree(path: Path) -> dict[str, str]:
    """Alert to what to do instead of walking a tree. Raises BadContentFileError."""
    file = read_content_file(path)
    if not isinstance(file.document, dict):
        raise BadContentFileError([Problem(file.name, "expected a mapping from alerts to texts")])
    form = validate(file, _NoTreeForm, lambda where: (f"alert {where[0]}", len(where)) if where else ("", 0))
    return form.root


def read_tree_file(path: Path, causes: Collection[str]) -> Tree:
    """One tree from its file. Raises BadContentFileError."""
    file = read_content_file(path)
    if not isinstance(file.document, dict):
        raise BadContentFileError([Problem(file.name, "expected a mapping with `tree`, `questions` and `verdicts`")])
    form = validate(
        file,
        _TreeForm,
        partial(entry_place, file.document, nouns={"questions": "question", "verdicts": "verdict"}, key="id"),
    )
    problems = [
        *_check_symptoms(file, form),
        *_check_branches(file, form),
        *_check_texts(file, form),
        *_check_causes(file, form, causes),
    ]
    if problems:
        raise BadContentFileError(sorted(problems, key=lambda problem: problem.line))
    return _to_tree(form)


def _to_tree(form: _TreeForm) -> Tree:
    return Tree(
        name=form.tree,
        title=form.title,
        symptoms=tuple(form.symptoms),
        stands_alone=frozenset(form.stands_alone),
        max_age_s=form.max_age_s,
        questions=tuple(_to_question(entry) for entry in form.questions),
        ask=tuple(form.ask),
        onset=tuple(" ".join(one.split()) for one in form.onset),
        verdicts={entry.id: Verdict(entry.id, entry.cause, entry.title, entry.at_most) for entry in form.verdicts},
    )


def _to_question(entry: _QuestionForm) -> Question:
    limit = _LIMIT.match(entry.when)
    assert limit is not None  # the form's pattern
    return Question(
        id=entry.id,
        ask=entry.ask,
        query=" ".join(entry.query.split()),
        pool_query=" ".join(entry.pool_query.split()) if entry.pool_query else None,
        limit=Limit(limit.group(1), float(limit.group(2))),
        unit=entry.unit,
        rules_out=entry.rules_out,
        if_yes=entry.if_yes,
        if_no=entry.if_no,
        if_unknown=entry.if_unknown,
        optional=entry.optional,
    )


def _check_symptoms(file: ContentFile, form: _TreeForm) -> Iterator[Problem]:
    for index, name in enumerate(form.stands_alone):
        if name not in form.symptoms:
            reason = f"stands_alone names {name}, which is no symptom of this tree"
            yield _problem(file, "", reason, "stands_alone", index, remedy="name it in `symptoms` too")


def _check_branches(file: ContentFile, form: _TreeForm) -> Iterator[Problem]:
    """Every name is unique, every branch leads down, and everything is reached."""
    order: dict[str, int] = {}
    verdicts: dict[str, int] = {}
    for index, entry in enumerate(form.verdicts):
        if entry.id in verdicts:
            yield _problem(file, f"verdict {entry.id}", "defined twice", "verdicts", index, remedy="rename one")
        verdicts.setdefault(entry.id, index)
    for index, question in enumerate(form.questions):
        if question.id in order or question.id in verdicts or question.id in (CONTINUE, END):
            yield _problem(file, f"question {question.id}", "the id is taken", "questions", index, remedy="rename it")
        order.setdefault(question.id, index)
    reached = {question.id for question in form.questions[:1]}
    for index, question in enumerate(form.questions):
        where = f"question {question.id}"
        if question.id not in reached and order[question.id] == index:
            yield _problem(file, where, "no branch leads here", "questions", index)
        for branch in ("if_yes", "if_no", "if_unknown"):
            target = getattr(question, branch)
            place = ("questions", index, branch)
            if target == CONTINUE and index + 1 < len(form.questions):
                target = form.questions[index + 1].id
            if target in order and order[target] <= index:
                reason = f"{branch} leads up to {target}; branches only lead down"
                yield _problem(file, where, reason, *place)
            elif target not in order and target not in verdicts and target not in (CONTINUE, END):
                near = nearest(target, [*order, *verdicts, CONTINUE, END])
                reason = f"{branch} names {target}, which is no question and no verdict"
                yield _problem(file, where, reason, *place, remedy=f'did you mean "{near}"?' if near else "")
            reached.add(target)
    for name, index in verdicts.items():
        if name not in reached:
            yield _problem(file, f"verdict {name}", "no branch leads here", "verdicts", index)


def _check_texts(file: ContentFile, form: _TreeForm) -> Iterator[Problem]:
    """Queries are PromQL that we evaluate, and placeholders are known."""
    for index, question in enumerate(form.questions):
        for key in ("query", "pool_query"):
            template = getattr(question, key)
            fault = query_fault(template, may_end_now=bool(question.window_ends_now)) if template else None
            if fault is not None:
                yield _problem(file, f"question {question.id}", fault[0], "questions", index, key, remedy=fault[1])
    known = {*(question.id for question in form.questions), *_TITLE_PLACEHOLDERS}
    for index, verdict in enumerate(form.verdicts):
        for name in PLACEHOLDER.findall(verdict.title):
            if name not in known:
                where = f"verdict {verdict.id}"
                remedy = "a question's id, or one of " + ", ".join(_TITLE_PLACEHOLDERS)
                reason = f"title has an unknown placeholder {name}"
                yield _problem(file, where, reason, "verdicts", index, "title", remedy=remedy)


def query_fault(template: str, *, may_end_now: bool) -> tuple[str, str] | None:
    """`(reason, remedy)`; None when nothing is wrong."""
    for name in PLACEHOLDER.findall(template):
        if name not in QUERY_PLACEHOLDERS:
            return f"unknown placeholder {name}", f"known: {', '.join(sorted(QUERY_PLACEHOLDERS))}"
    try:
        root = parse(sample_query(template)).root
    except BadExpressionError as error:
        return str(error), ""
    longest_ms = max(windows_up_to_now(root), default=0)
    if longest_ms >= LONG_WINDOW_S * 1000 and not may_end_now:
        reason = f"a window of {format_seconds(longest_ms / 1000)} ends now: it contains what it is compared with"
        return reason, "end it before the onset: [30m] {{before}}; or say why it may in `window_ends_now`"
    if any(isinstance(one.at, int) for one in _selectors_with_age(root)):
        return "the age of a past value is no age", "put what reads {{before}} into scalar(...)"
    return None


def _selectors_with_age(node: Node) -> Iterator[Selector]:
    """The selectors whose samples decide the age of the answer: those outside of every scalar()."""
    if isinstance(node, Call) and node.function == "scalar":
        return
    if isinstance(node, Selector):
        yield node
    for child in children(node):
        yield from _selectors_with_age(child)


def _check_causes(file: ContentFile, form: _TreeForm, causes: Collection[str]) -> Iterator[Problem]:
    for index, question in enumerate(form.questions):
        if question.rules_out is not None and question.rules_out not in causes:
            reason, remedy = unknown("cause", question.rules_out, causes)
            where = f"question {question.id}"
            yield _problem(file, where, reason, "questions", index, "rules_out", remedy=remedy)
    for index, verdict in enumerate(form.verdicts):
        if verdict.cause not in causes:
            reason, remedy = unknown("cause", verdict.cause, causes)
            yield _problem(file, f"verdict {verdict.id}", reason, "verdicts", index, "cause", remedy=remedy)


def _problem(file: ContentFile, place: str, reason: str, *path: str | int, remedy: str = "") -> Problem:
    return Problem(file.name, reason, remedy, place, file.line_of(*path))
