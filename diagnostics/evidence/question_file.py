"""From YAML to questions, with every fault named by file, line and question.

questions:
  - id: prefix_hit_fell
    ask: Has the prefix hit ratio fallen against the time before?
    query: avg(...{{{scope}}}[30m] {{before}}) - avg(...)
    when: "> 0.2"      # yes
    unless: "< 0.1"    # no; between the two it is unknown
    unit: ratio
    because: why this limit
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from diagnostics.content_file import (
    BadContentFileError,
    ContentFile,
    Problem,
    entry_place,
    read_content_file,
    validate,
)
from diagnostics.evidence.question import Question
from diagnostics.tree import Limit
from diagnostics.tree_file import query_fault
from diagnostics.value_format import Unit

QUESTION_NAME = r"^[a-z][a-z0-9_]{0,63}$"
_LIMIT = re.compile(r"^(>=|<=|==|!=|>|<)\s*(-?\d+(?:\.\d+)?)$")


class _QuestionForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, str_strip_whitespace=True)

    id: str = Field(pattern=QUESTION_NAME)
    ask: str = Field(min_length=1, max_length=200)
    query: str = Field(min_length=1, max_length=2000)
    pool_query: str | None = Field(default=None, min_length=1, max_length=2000)
    when: str = Field(pattern=_LIMIT.pattern)
    unless: str | None = Field(default=None, pattern=_LIMIT.pattern)
    unit: Unit
    because: str = Field(min_length=10, max_length=1000)
    base: float = Field(default=0.05, gt=0, lt=1)
    lag_s: float = Field(default=0.0, ge=0, le=3600)
    max_age_s: float = Field(default=60.0, gt=0, le=3600)
    optional: bool = False
    certain: bool = False
    symptom: bool = False
    told: Literal["always", "yes_only"] = "always"
    # facts: it is there without traffic too; none: a record that is right from its first line
    past: Literal["traffic", "facts", "none"] = "traffic"
    window_ends_now: str = Field(default="", max_length=500)  # why a long window may contain what is asked about
    note: str = Field(default="", max_length=1000)


class _QuestionsForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    questions: list[_QuestionForm] = Field(min_length=1, max_length=500)


def builtin_question_files() -> list[Path]:
    """The questions that ship with the package."""
    return sorted((Path(__file__).parents[1] / "questions").glob("*.yaml"))


@lru_cache(maxsize=1)
def builtin_questions() -> Mapping[str, Question]:
    """Those questions by id. Raises BadContentFileError."""
    return MappingProxyType(load_questions(builtin_question_files()))


def load_questions(paths: Iterable[Path]) -> dict[str, Question]:
    """All questions of the files by id. Raises BadContentFileError with the problems of all files."""
    questions: dict[str, Question] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            found = read_question_file(path)
        except BadContentFileError as error:
            problems += error.problems
            continue
        for one in found:
            if (first := questions.setdefault(one.id, one)) is not one:
                reason = f"defined already in {first.file}:{first.line}"
                problems.append(Problem(one.file, reason, "rename one", f"question {one.id}", one.line))
    if problems:
        raise BadContentFileError(problems)
    return questions


def read_question_file(path: Path) -> list[Question]:
    """The file's questions, in order. Raises BadContentFileError."""
    file = read_content_file(path)
    form = validate(
        file, _QuestionsForm, partial(entry_place, file.document, nouns={"questions": "question"}, key="id")
    )
    if problems := list(_check_queries(file, form)):
        raise BadContentFileError(problems)
    return [_question(file, index, entry) for index, entry in enumerate(form.questions)]


def _check_queries(file: ContentFile, form: _QuestionsForm) -> Iterator[Problem]:
    for index, entry in enumerate(form.questions):
        for key in ("query", "pool_query"):
            template = getattr(entry, key)
            fault = query_fault(template, may_end_now=bool(entry.window_ends_now)) if template else None
            if fault is not None:
                line = file.line_of("questions", index, key)
                yield Problem(file.name, fault[0], fault[1], f"question {entry.id}", line)


def _question(file: ContentFile, index: int, entry: _QuestionForm) -> Question:
    return Question(
        id=entry.id,
        ask=entry.ask,
        query=" ".join(entry.query.split()),
        pool_query=" ".join(entry.pool_query.split()) if entry.pool_query else None,
        when=_limit(entry.when),
        unless=_limit(entry.unless) if entry.unless else None,
        unit=entry.unit,
        because=" ".join(entry.because.split()),
        base=entry.base,
        lag_s=entry.lag_s,
        max_age_s=entry.max_age_s,
        optional=entry.optional,
        certain=entry.certain,
        symptom=entry.symptom,
        is_told_always=entry.told == "always",
        past=entry.past,
        file=file.name,
        line=file.line_of("questions", index),
    )


def _limit(text: str) -> Limit:
    found = _LIMIT.match(text)
    assert found is not None  # the form's pattern
    return Limit(found.group(1), float(found.group(2)))
