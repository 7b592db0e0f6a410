"""What a decision tree is and how its YAML file becomes one. It must not know how a question is answered.

A tree is a list of questions in the order an engineer asks them. Each has one PromQL query, a limit, and three
branches. A branch leads to a question further down the file, to a verdict, to the next question (`continue`) or
to the end (`end`). Since no branch leads up, every walk ends.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from diagnostics.cause import Cause
from diagnostics.unit import Unit, format_value

CONTINUE = "continue"  # the question below
END = "end"  # stop without naming a cause
MAX_TREE_BYTES = 256 * 1024  # a tree is read by people; a larger file is not a tree
IDENTIFIER = r"^[a-z][a-z0-9_]{0,63}$"
PLACEHOLDER = re.compile(r"\{\{\s*([a-z0-9_]+)\s*\}\}")
QUERY_PLACEHOLDERS = frozenset({"node", "pool", "model", "scope"})

COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_LIMIT = re.compile(r"^(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?)$")


class BadTreeError(Exception):
    """A tree file that can't be used. The message names the file, the question or verdict, and the fault."""


@dataclass(frozen=True, slots=True)
class Limit:
    """`value <comparison> bound` is the yes of a question."""

    comparison: str
    bound: float

    def holds(self, value: float) -> bool:
        return COMPARISONS[self.comparison](value, self.bound)


@dataclass(frozen=True, slots=True)
class Question:
    id: str
    ask: str  # the question in words
    query: str  # PromQL template
    pool_query: str | None  # asked instead when the scope names no node
    limit: Limit
    unit: str
    rules_out: Cause | None  # which cause a "no" excludes
    if_yes: str
    if_no: str
    if_unknown: str

    @property
    def threshold(self) -> str:
        """The limit as text with its unit, e.g. "> 200 ms"."""
        return f"{self.limit.comparison} {format_value(self.limit.bound, self.unit)}"


@dataclass(frozen=True, slots=True)
class Verdict:
    id: str
    cause: Cause
    title: str  # template: {{where}}, {{value}} of the deciding question, or a question's id for its value
    at_most: Literal["confirmed", "likely"]  # "likely" where the evidence is only that two things coincide


@dataclass(frozen=True, slots=True)
class Tree:
    name: str
    title: str
    symptoms: tuple[str, ...]  # the alerts that it explains
    max_age_s: float  # a value older than this is no evidence
    questions: tuple[Question, ...]
    verdicts: Mapping[str, Verdict]

    def position(self, question_id: str) -> int | None:
        """Where the question stands in the order; None when there is no such question."""
        return next((i for i, question in enumerate(self.questions) if question.id == question_id), None)


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
    max_age_s: float = Field(default=60.0, gt=0, le=3600)
    questions: list[_QuestionForm] = Field(min_length=1, max_length=100)
    verdicts: list[_VerdictForm] = Field(min_length=1, max_length=100)


def builtin_tree_files() -> list[Path]:
    """The trees that ship with the package, sorted by name."""
    return sorted((Path(__file__).parent / "trees").glob("*.yaml"))


def load_trees(paths: Iterable[Path]) -> dict[str, Tree]:
    """All trees of `paths` by name.

    Raises:
        BadTreeError: a file can't be read or used, two trees share a name, or two explain the same alert.
    """
    trees: dict[str, Tree] = {}
    owner: dict[str, str] = {}  # alert -> tree
    for path in paths:
        tree = _load(path)
        if tree.name in trees:
            raise BadTreeError(f"{path}: tree {tree.name} is defined twice; rename one")
        for symptom in tree.symptoms:
            if symptom in owner:
                raise BadTreeError(f"{path}: alert {symptom} is already explained by tree {owner[symptom]}")
            owner[symptom] = tree.name
        trees[tree.name] = tree
    return trees


def tree_for_alert(trees: Mapping[str, Tree], alertname: str) -> Tree | None:
    """The tree that explains the alert; None when none does."""
    return next((tree for tree in trees.values() if alertname in tree.symptoms), None)


def bind(template: str, scope: Mapping[str, str]) -> tuple[str, str]:
    """`(query, "")` with the scope filled in, or `("", why)` when the scope lacks a placeholder's label.

    Values are escaped: a label can't break out of its PromQL string.
    """
    missing = [
        name for name in PLACEHOLDER.findall(template) if name != "scope" and not scope.get(name)
    ]  # fmt: skip
    if missing:
        return "", f"the scope names no {missing[0]}"

    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        return scope_matcher(scope) if name == "scope" else _escape(scope[name])

    return PLACEHOLDER.sub(fill, template), ""


def scope_matcher(scope: Mapping[str, str]) -> str:
    """The narrowest PromQL matcher for a scope: the node; else all of the places it names; none: the whole fleet.

    A model beside a pool is left out: the pool is the narrower of the two.
    """
    if scope.get("node"):
        names: tuple[str, ...] = ("node",)
    else:
        names = ("pool" if scope.get("pool") else "model", "zone", "revision")
    return ",".join(f'{name}="{_escape(scope[name])}"' for name in names if scope.get(name))


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _load(path: Path) -> Tree:
    try:
        if path.stat().st_size > MAX_TREE_BYTES:
            raise BadTreeError(f"{path}: larger than {MAX_TREE_BYTES // 1024} KiB")
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadTreeError(f"{path}: can't be read: {error}") from error
    except yaml.YAMLError as error:
        raise BadTreeError(f"{path}: not YAML: {error}") from error
    if not isinstance(document, dict):
        raise BadTreeError(f"{path}: expected a mapping with `tree`, `questions` and `verdicts`")
    try:
        form = _TreeForm.model_validate(document)
    except ValidationError as error:
        raise BadTreeError(f"{path}: {_where(document, error)}") from error
    tree = _to_tree(path, form)
    _check(path, tree)
    return tree


def _where(document: Mapping[str, object], error: ValidationError) -> str:
    first = error.errors()[0]
    location = list(first["loc"])
    named = ""
    if len(location) >= 2 and location[0] in ("questions", "verdicts") and isinstance(location[1], int):
        entries = document.get(str(location[0]))
        entry = entries[location[1]] if isinstance(entries, list) else None
        kind = "question" if location[0] == "questions" else "verdict"
        name = entry.get("id", location[1] + 1) if isinstance(entry, dict) else location[1] + 1
        named, location = f"{kind} {name}: ", location[2:]
    field = ".".join(str(part) for part in location)
    return f"{named}{field}: {first['msg']}" if field else f"{named}{first['msg']}"


def _to_tree(path: Path, form: _TreeForm) -> Tree:
    questions = []
    for entry in form.questions:
        parsed = _LIMIT.match(entry.when)
        assert parsed is not None  # the form's pattern
        questions.append(
            Question(
                id=entry.id,
                ask=entry.ask,
                query=" ".join(entry.query.split()),
                pool_query=" ".join(entry.pool_query.split()) if entry.pool_query else None,
                limit=Limit(parsed.group(1), float(parsed.group(2))),
                unit=entry.unit,
                rules_out=_cause(path, f"question {entry.id}", entry.rules_out) if entry.rules_out else None,
                if_yes=entry.if_yes,
                if_no=entry.if_no,
                if_unknown=entry.if_unknown,
            )
        )
    verdicts = {}
    for verdict in form.verdicts:
        if verdict.id in verdicts:
            raise BadTreeError(f"{path}: verdict {verdict.id}: defined twice")
        cause = _cause(path, f"verdict {verdict.id}", verdict.cause)
        verdicts[verdict.id] = Verdict(verdict.id, cause, verdict.title, verdict.at_most)
    return Tree(form.tree, form.title, tuple(form.symptoms), form.max_age_s, tuple(questions), verdicts)


def _cause(path: Path, where: str, text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError:
        known = ", ".join(Cause)
        raise BadTreeError(f"{path}: {where}: unknown cause {text}; known: {known}") from None


def _check(path: Path, tree: Tree) -> None:
    """Raises BadTreeError unless every name is unique, every branch leads down, and everything is reached."""
    order: dict[str, int] = {}
    for index, question in enumerate(tree.questions):
        if question.id in order or question.id in tree.verdicts or question.id in (CONTINUE, END):
            raise BadTreeError(f"{path}: question {question.id}: the id is taken")
        order[question.id] = index
    reached = {tree.questions[0].id}
    for index, question in enumerate(tree.questions):
        where = f"{path}: question {question.id}"
        if question.id not in reached:
            raise BadTreeError(f"{where}: no branch leads here")
        for branch in ("if_yes", "if_no", "if_unknown"):
            target = getattr(question, branch)
            if target == CONTINUE and index + 1 < len(tree.questions):
                target = tree.questions[index + 1].id
            if target in order and order[target] <= index:
                raise BadTreeError(f"{where}: {branch} leads up to {target}; branches only lead down")
            if target not in order and target not in tree.verdicts and target not in (CONTINUE, END):
                raise BadTreeError(f"{where}: {branch} names {target}, which is no question and no verdict")
            reached.add(target)
        for template in filter(None, (question.query, question.pool_query)):
            _check_query(where, template)
    for verdict in tree.verdicts.values():
        if verdict.id not in reached:
            raise BadTreeError(f"{path}: verdict {verdict.id}: no branch leads here")
        for name in PLACEHOLDER.findall(verdict.title):
            if name not in order and name not in ("where", "value", "node", "pool", "model"):
                raise BadTreeError(f"{path}: verdict {verdict.id}: title has an unknown placeholder {name}")


def _check_query(where: str, template: str) -> None:
    # Imported here: walking a tree that is already loaded needs no evaluator.
    from alerts.errors import BadExpressionError
    from alerts.promql import parse

    for name in PLACEHOLDER.findall(template):
        if name not in QUERY_PLACEHOLDERS:
            known = ", ".join(sorted(QUERY_PLACEHOLDERS))
            raise BadTreeError(f"{where}: unknown placeholder {name}; known: {known}")
    query, _ = bind(template, {"node": "n", "pool": "p", "model": "m"})
    try:
        parse(query)
    except BadExpressionError as error:
        raise BadTreeError(f"{where}: {error}") from error
