"""Pages of the library, and the commands that they are made of."""

from __future__ import annotations

from pydantic import Field

from fleetctl.wire.base import Wire


class RunbookInfo(Wire):
    """A page of the library."""

    name: str  # of its file
    title: str  # what it does, in words
    risk: str  # low, medium or high
    causes: list[str]  # that it is for
    inputs: dict[str, str]  # name to description
    page: str = ""  # the Markdown itself

    @property
    def body(self) -> str:
        """The page without its front matter, which the other fields tell."""
        lines = self.page.splitlines(keepends=True)
        if not lines or lines[0].rstrip() != "---":
            return self.page
        end = next((number for number, line in enumerate(lines[1:], 1) if line.rstrip() == "---"), None)
        return self.page if end is None else "".join(lines[end + 1 :]).lstrip("\n")


class VerbOption(Wire):
    """One option of a verb. `default` is in seconds for durations, and None where there is none."""

    name: str  # with its dashes
    kind: str  # duration, node, nodes, count, size, flag
    default: float | bool | None = None
    required: bool = False
    help: str = ""


class VerbInfo(Wire):
    """A command that changes something: what `POST /v1/actions`, pages and the command line take."""

    name: str
    targets: list[str]  # kinds: node, pool, model, revision, tenant, route, fleet
    usage: str
    help: str
    example: str
    capacity: str  # what it does to the nodes that take requests
    idempotency: str  # how a second call finds the work of the first
    has_undo: bool = False  # a run of this one command is undone when it fails
    options: list[VerbOption] = Field(default_factory=list)
