"""Rules, trees, causes and pages in force, and what is wrong with them."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from fleetctl.wire.base import Wire


class ContentState(Wire):
    """The content in force, and whether the last attempt to load another failed."""

    folders: list[str] = Field(default_factory=list)  # of users, in the order in which they are laid over ours
    loaded_at: float | None = None
    own_objects: int = 0  # from those folders
    overrides: int = 0  # of them, those that replace others of their name
    failed_at: float | None = None  # None: the last load went well
    error: str = ""


class ContentObject(Wire):
    """One rule, tree, cause, page or other thing by name."""

    kind: str
    name: str
    source: str  # "built-in", or the folder
    file: str
    overrides: list[str] = Field(default_factory=list)  # sources of those that it replaces


class ContentProblem(Wire):
    """One fault in a content file; `line` 0 where it is not known."""

    severity: Literal["error", "warning"]
    file: str
    line: int = 0
    place: str = ""
    reason: str
    remedy: str = ""


class ContentListing(Wire):
    """Everything that is loaded. `problems`: of the last load that failed, else the warnings of what is in force."""

    state: ContentState
    objects: list[ContentObject] = Field(default_factory=list)
    problems: list[ContentProblem] = Field(default_factory=list)
