"""Causes: the words that trees end in and that pages say they treat. They are data, so that users can bring their own.

causes:
  - name: slow_node
    title: One node computes slowly
    means: what it is, for the reader of a verdict
    signals: [llm:step_seconds:mean]      where it shows
    confused_with: [overload]             causes that look alike, and that a tree must tell it from
    page: replace-node                    or `no_page: why there is none`
    not_by_deploy: true                   it says by itself where it comes from: to take a deploy back mends no card
    says: "{{where}} computes slowly: {{slow_steps}} as long as its peers"    the verdict's title
    where: [node]                         places it may be the cause of: node, pool, fleet; default all
    explains: [latency]                   trees whose alerts it can be behind
    must: [slow_steps, [a, b]]            questions: each is yes, of a list one is
    often: [queue_waits]                  yes in most cases
    may: [ttft_up]                        no surprise
    never: [arrivals_doubled]             a yes rules it out
    prior: 1                              how common, beside the others
    at_most: likely                       its evidence only coincides
    alone: true                           it is never named beside another cause
    state: true                           others lead to it: beside one of them it is named second
    only_seen: true                       a must that nobody can tell rules it out: its symptoms alone are everybody's
    tell_apart: {overload: slow_steps}    the question that tells it from another cause
    hurts: [promise_broken, errors_up]    of what passes by itself: where the first is no, and none is yes, nothing is
    unhurt: "{{nodes}} is loading"        wrong, and this is said
    acts_on: [process_ended]              its page is proposed once one of these is yes, and until then
    awaits: only failed scrapes say so    this is said
    lasts_s: 60                           it is confirmed once it has gone on for so long
    left_while: {pod_liveness: why}       nothing is proposed while that is yes, and why is said
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from diagnostics.content_file import BadContentFileError, Problem, entry_place, read_content_file, validate
from diagnostics.expectation import PLACES, Expectation, Place

CAUSE_NAME = r"^[a-z][a-z0-9_]{0,63}$"
_Name = Annotated[str, Field(pattern=CAUSE_NAME)]
_Word = Annotated[str, Field(min_length=1, max_length=200)]


@dataclass(frozen=True, slots=True)
class Cause:
    """Why something is wrong. `page` "": no page treats it, and `no_page` says why."""

    name: str
    title: str
    means: str
    signals: tuple[str, ...]  # metric names in which it shows
    confused_with: tuple[str, ...]  # names of causes
    page: str
    no_page: str
    file: str  # where it is defined, for errors
    line: int
    not_by_deploy: bool = False  # no deploy brings it about, so none is taken back for it
    expects: Expectation | None = None  # None: only trees of the old form name it


class _CauseForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, str_strip_whitespace=True)

    name: str = Field(pattern=CAUSE_NAME)
    title: str = Field(min_length=1, max_length=200)
    means: str = Field(min_length=1, max_length=2000)
    signals: list[_Word] = Field(min_length=1, max_length=50)
    confused_with: list[_Word] = Field(default_factory=list, max_length=50)
    page: str = Field(default="", max_length=100)
    no_page: str = Field(default="", max_length=500)
    not_by_deploy: bool = False
    says: str = Field(default="", max_length=300)
    where: list[Place] = Field(default_factory=lambda: list(PLACES), min_length=1)
    explains: list[_Name] = Field(default_factory=list, max_length=50)
    must: list[_Name | Annotated[list[_Name], Field(min_length=1, max_length=20)]] = Field(
        default_factory=list, max_length=20
    )
    often: list[_Name] = Field(default_factory=list, max_length=50)
    may: list[_Name] = Field(default_factory=list, max_length=100)
    never: list[_Name] = Field(default_factory=list, max_length=50)
    prior: float = Field(default=1.0, gt=0, le=10)
    at_most: Literal["confirmed", "likely"] = "confirmed"
    only_seen: bool = False
    alone: bool = False
    state: bool = False
    tell_apart: dict[_Name, _Name] = Field(default_factory=dict, max_length=50)
    hurts: list[_Name] = Field(default_factory=list, max_length=20)
    unhurt: str = Field(default="", max_length=300)
    acts_on: list[_Name] = Field(default_factory=list, max_length=20)
    awaits: str = Field(default="", max_length=300)
    lasts_s: float = Field(default=0.0, ge=0, le=3600)
    left_while: dict[_Name, _Word] = Field(default_factory=dict, max_length=20)

    @model_validator(mode="after")
    def _says_what_to_do(self) -> Self:
        if bool(self.page) == bool(self.no_page):
            raise ValueError("give `page`, the page that treats it, or `no_page`, a sentence why there is none")
        return self

    @model_validator(mode="after")
    def _expects_something(self) -> Self:
        if self.must and not (self.says and self.explains):
            raise ValueError(
                "a cause with `must` needs `says`, the verdict's title, and `explains`, the trees it is behind"
            )
        # One question may be in two groups of a must: its yes is enough for both.
        musts = {name for group in self._groups() for name in group}
        named = [*musts, *self.often, *self.may, *self.never]
        twice = sorted({name for name in named if named.count(name) > 1})
        twice += sorted({name for group in self._groups() for name in group if group.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: named twice in must, often, may and never")
        return self

    @model_validator(mode="after")
    def _says_what_passes(self) -> Self:
        if bool(self.hurts) != bool(self.unhurt):
            raise ValueError(
                "give `hurts`, the questions that tell whether it hurts, and `unhurt`, what is said if not"
            )
        return self

    @model_validator(mode="after")
    def _says_what_it_waits_for(self) -> Self:
        if bool(self.acts_on) != bool(self.awaits) or (self.acts_on and not self.page):
            raise ValueError(
                "give `acts_on`, the questions one of which its page needs, and `awaits`, what is said until then"
            )
        return self

    def _groups(self) -> list[list[str]]:
        return [[one] if isinstance(one, str) else one for one in self.must]

    def expectation(self) -> Expectation | None:
        """What the scorer knows of it."""
        if not self.must:
            return None
        return Expectation(
            says=self.says,
            explains=frozenset(self.explains),
            must=tuple(tuple(group) for group in self._groups()),
            often=tuple(self.often),
            may=tuple(self.may),
            never=tuple(self.never),
            where=frozenset(self.where),
            prior=self.prior,
            at_most=self.at_most,
            only_seen=self.only_seen,
            alone=self.alone,
            state=self.state,
            tell_apart=self.tell_apart,
            hurts=tuple(self.hurts),
            unhurt=self.unhurt,
            acts_on=tuple(self.acts_on),
            awaits=self.awaits,
            lasts_s=self.lasts_s,
            left_while=self.left_while,
        )


class _CausesForm(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    causes: list[_CauseForm] = Field(min_length=1, max_length=500)


def builtin_cause_files() -> list[Path]:
    """The causes that ship with the package."""
    return sorted((Path(__file__).parent / "causes").glob("*.yaml"))


@lru_cache(maxsize=1)
def builtin_causes() -> Mapping[str, Cause]:
    """Those causes by name. Raises BadContentFileError."""
    return MappingProxyType(load_causes(builtin_cause_files()))


def load_causes(paths: Iterable[Path]) -> dict[str, Cause]:
    """All causes of the files by name. Which causes and pages exist elsewhere is not judged here.

    Raises BadContentFileError with the problems of all files.
    """
    causes: dict[str, Cause] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            found = read_cause_file(path)
        except BadContentFileError as error:
            problems += error.problems
            continue
        for cause in found:
            if cause.name in causes:
                first = causes[cause.name]
                reason = f"defined already in {first.file}:{first.line}"
                problems.append(Problem(cause.file, reason, "rename one", f"cause {cause.name}", cause.line))
            causes[cause.name] = cause
    if problems:
        raise BadContentFileError(problems)
    return causes


def read_cause_file(path: Path) -> list[Cause]:
    """The file's causes, in order. Raises BadContentFileError."""
    file = read_content_file(path)
    form = validate(file, _CausesForm, partial(entry_place, file.document, nouns={"causes": "cause"}, key="name"))
    return [
        Cause(
            name=entry.name,
            title=entry.title,
            means=" ".join(entry.means.split()),
            signals=tuple(entry.signals),
            confused_with=tuple(entry.confused_with),
            page=entry.page,
            no_page=" ".join(entry.no_page.split()),
            not_by_deploy=entry.not_by_deploy,
            file=file.name,
            line=file.line_of("causes", index),
            expects=entry.expectation(),
        )
        for index, entry in enumerate(form.causes)
    ]
