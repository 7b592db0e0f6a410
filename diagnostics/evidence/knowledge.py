"""What is judged by: questions, and what causes expect of their answers. Pure but for reading the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from diagnostics.cause import Cause, builtin_causes
from diagnostics.evidence.question import Question
from diagnostics.evidence.question_file import builtin_questions
from diagnostics.expectation import Expectation


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
