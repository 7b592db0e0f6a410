"""Content read from the package and the users' folders, laid over each other by name, and checked as a whole.

All or nothing: one bad file, and none of it is loaded; all that is wrong in all files is told at once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from alerts.errors import AlertsError
from alerts.evaluation.rules import RuleGroup, load_rule_file
from alerts.review.lint import lint_files
from diagnostics.cause import Cause, read_cause_file
from diagnostics.content_file import BadContentFileError
from diagnostics.evidence.question import Question
from diagnostics.evidence.question_file import read_question_file
from diagnostics.tree import Tree
from diagnostics.tree_file import load_no_tree, read_tree_file
from fleetctl.controller.content.checks import check_content
from fleetctl.controller.content.content import BadContentError, Content, ContentProblem
from fleetctl.controller.content.folder import Source, builtin_source, user_source
from fleetctl.controller.content.overlay import Part, overlay
from fleetctl.controller.content.policy_file import read_policy_file
from runbooks.errors import BadPageError
from runbooks.page import load_page


def load_content(folders: Sequence[Path] = ()) -> Content:
    """The package's content with that of the folders laid over it, in their order: of one name, the last one counts.

    Raises BadContentError with every problem of every file.
    """
    problems: list[ContentProblem] = []
    sources = []
    for folder in folders:
        source, strays = user_source(folder)
        sources.append(source)
        problems += strays
    problems += _lint_rules(sources)
    parts = [_builtin_part()]
    known = {cause.name for cause, _ in parts[0].causes}
    readers = [_Reader(source, problems) for source in sources]
    for reader in readers:
        reader.read_causes()
        known |= {cause.name for cause, _ in reader.part.causes}
    is_known: Collection[str] = _Anything() if any("causes" in reader.failed for reader in readers) else known
    for reader in readers:
        reader.read_rest(is_known)
        parts.append(reader.part)
    content = overlay(parts, problems)
    failed = frozenset(kind for reader in readers for kind in reader.failed)
    problems += check_content(content, failed)
    if any(problem.severity == "error" for problem in problems):
        raise BadContentError(_in_order(problems))
    return replace(content, warnings=tuple(_in_order(problems)))


@lru_cache(maxsize=1)
def _builtin_part() -> Part:
    """The package's own content, read once: it does not change while we run. Raises BadContentError."""
    problems: list[ContentProblem] = []
    reader = _Reader(builtin_source(), problems)
    reader.read_causes()
    reader.read_rest({cause.name for cause, _ in reader.part.causes})
    if problems:
        raise BadContentError(problems)
    return reader.part


class _Anything(Collection[str]):
    """Stands for names that could not be read: what refers to them is not judged."""

    def __contains__(self, name: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@dataclass(slots=True)
class _Reader:
    """Reads the files of one source into `part`; what is wrong goes to `problems`, its kind to `failed`."""

    source: Source
    problems: list[ContentProblem]
    part: Part = field(init=False)
    failed: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.part = Part(self.source.name, cases=list(self.source.files["cases"]))

    def read_causes(self) -> None:
        """Before the rest, which names them."""
        for path in self.source.files["causes"]:
            found: list[Cause] = self._read("causes", lambda path=path: read_cause_file(path)) or []
            self.part.causes += [(cause, path) for cause in found]

    def read_rest(self, causes: Collection[str]) -> None:
        """Everything but causes. `causes`: those of all sources."""
        for kind, into in (
            ("signals", self.part.signals),
            ("objectives", self.part.objectives),
            ("rules", self.part.rules),
        ):
            for path in self.source.files[kind]:
                groups: list[RuleGroup] = self._read_rules(kind, path)
                into += [(group, path) for group in groups]
        for path in self.source.files["questions"]:
            read: list[Question] = self._read("questions", lambda path=path: read_question_file(path)) or []
            self.part.questions += [(one, path) for one in read]
        for path in self.source.files["trees"]:
            tree: Tree | None = self._read("trees", lambda path=path: read_tree_file(path, causes))
            if tree is not None:
                self.part.trees.append((tree, path))
        if self.source.no_tree is not None:
            path = self.source.no_tree
            reasons = self._read("trees", lambda: load_no_tree(path)) or {}
            self.part.no_tree += [((alert, reason), path) for alert, reason in reasons.items()]
        for path in self.source.files["policies"]:
            policies = self._read("policies", lambda path=path: read_policy_file(path, causes))
            if policies is not None:
                self.part.policies += [((cause, policy), path) for cause, policy in policies.policies.items()]
                self.part.approvals += [(rule, path) for rule in policies.approvals]
        for path in self.source.files["pages"]:
            try:
                self.part.pages.append((load_page(path), path))
            except BadPageError as error:
                self.failed.add("pages")
                self.problems.append(
                    ContentProblem("error", str(path), error.line, "", error.reason, error.remedy or "")
                )

    def _read(self, kind: str, read: Any) -> Any:
        try:
            return read()
        except BadContentFileError as error:
            self.failed.add(kind)
            self.problems += [
                ContentProblem("error", one.file, one.line, one.place, one.reason, one.remedy) for one in error.problems
            ]
            return None

    def _read_rules(self, kind: str, path: Path) -> list[RuleGroup]:
        try:
            return load_rule_file(path)
        except AlertsError as error:
            self.failed.add(kind)
            # The linter has told of it, with its line. A fault that it did not see must not be lost.
            if not any(one.file == str(path) and one.severity == "error" for one in self.problems):
                self.problems.append(ContentProblem("error", str(path), 0, "", str(error)))
            return []


def _lint_rules(sources: Iterable[Source]) -> list[ContentProblem]:
    """What the linter of rule files says of the users'; a name that one of them records is known in all."""
    paths = [path for source in sources for kind in ("signals", "objectives", "rules") for path in source.files[kind]]
    shown = []
    for one in lint_files(paths) if paths else ():
        place = ", ".join(part for part in (one.group, one.rule) if part)
        severity: Literal["error", "warning"] = "error" if one.severity == "error" else "warning"
        shown.append(ContentProblem(severity, one.file, one.line, place, one.message, one.remedy))
    return shown


def _in_order(problems: Iterable[ContentProblem]) -> list[ContentProblem]:
    return sorted(dict.fromkeys(problems), key=lambda one: (one.severity != "error", one.file, one.line))
