"""A content file (a tree, causes, reasons without a tree) read with its lines, and what is wrong with one.

A reader collects every problem of its file before it raises: a person mends them all at once.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from alerts.yaml_keys import REMEDY, YamlKeys, read_document

MAX_FILE_BYTES = 256 * 1024  # content is read by people; a larger file is none


@dataclass(frozen=True, slots=True)
class Problem:
    """One fault. `line` counts from 1, 0 where the whole file is meant; `place` names the thing in the file."""

    file: str
    reason: str
    remedy: str = ""
    place: str = ""
    line: int = 0

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}" if self.line else self.file
        parts = [part for part in (where, self.place, self.reason) if part]
        return ": ".join(parts) + (f"; {self.remedy}" if self.remedy else "")


class BadContentFileError(Exception):
    """Content that can't be used; `problems` has everything that is wrong with it, and is never empty."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        assert problems
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


@dataclass(frozen=True, slots=True)
class ContentFile:
    """`document` as YAML gives it."""

    name: str
    document: Any
    keys: YamlKeys

    def line_of(self, *path: Hashable) -> int:
        """The line of the longest part of `path` that is in the file; 0 for an empty one."""
        return self.keys.line_of(*path)


_M = TypeVar("_M", bound=BaseModel)


def read_content_file(path: Path) -> ContentFile:
    """The YAML file with its lines. Raises BadContentFileError: unreadable, too large, not YAML, a key given twice."""
    name = str(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise _bad(name, f"larger than {MAX_FILE_BYTES // 1024} KiB", "split it")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad(name, f"can't be read: {error}", "check its permissions and its encoding (UTF-8)") from error
    try:
        document, keys = read_document(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise _bad(name, f"not YAML: {reason}", line=mark.line + 1 if mark else 0) from error
    except RecursionError:
        raise _bad(name, "nested too deeply") from None
    if keys.twice:
        raise BadContentFileError([Problem(name, str(one), REMEDY, line=one.line) for one in keys.twice])
    return ContentFile(name, document, keys)


def validate(file: ContentFile, model: type[_M], place_of: Callable[[Sequence[Any]], tuple[str, int]]) -> _M:
    """The document as `model`. `place_of`: from an error's path to the place's name and how much of the path it is.

    Raises BadContentFileError with every fault that pydantic finds.
    """
    try:
        return model.model_validate(file.document)
    except ValidationError as error:
        problems = []
        for fault in error.errors():
            path = fault["loc"]
            place, used = place_of(path)
            key = ".".join(str(part) for part in path[used:])
            message = fault["msg"].removeprefix("Value error, ")  # what pydantic puts before our own words
            reason = f"{key}: {message}" if key else message
            remedy = "correct its spelling or remove it" if fault["type"] == "extra_forbidden" else ""
            problems.append(Problem(file.name, reason, remedy, place, file.line_of(*path)))
        raise BadContentFileError(problems) from error


def entry_place(document: Any, where: Sequence[Any], *, nouns: Mapping[str, str], key: str) -> tuple[str, int]:
    """For `validate`: "cause slow_node" and how much of the path it is; `("", 0)` outside of the lists of entries.

    `nouns`: what an entry of each list of the document is called. `key`: where an entry has its name.
    """
    if len(where) < 2 or where[0] not in nouns or not isinstance(where[1], int):
        return "", 0
    entry = document[where[0]][where[1]]
    name = entry.get(key) if isinstance(entry, dict) else None
    return f"{nouns[where[0]]} {name or where[1] + 1}", 2


def unknown(kind: str, word: str, known: Iterable[str]) -> tuple[str, str]:
    """`(reason, remedy)` for a name that is not known: the nearest one, else all of them."""
    names = sorted(known)
    if near := nearest(word, names):
        return f'unknown {kind} "{word}", did you mean "{near}"?', ""
    return f'unknown {kind} "{word}"', f"known: {', '.join(names)}" if names else "there are none"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name that was probably meant."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)


def _bad(name: str, reason: str, remedy: str = "", line: int = 0) -> BadContentFileError:
    return BadContentFileError([Problem(name, reason, remedy, line=line)])
