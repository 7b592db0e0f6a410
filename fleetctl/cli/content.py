"""`content`: the rules, trees, causes, pages and policies in force, and a user's folder checked before it is."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli import output as out
from fleetctl.cli.context import call, current
from fleetctl.cli.output import Column, Output, OutputOption, print_data, print_rows
from fleetctl.kit.errors import BadInputError

if TYPE_CHECKING:
    from fleetctl.controller.content.content import ContentProblem
    from fleetctl.wire.content import ContentListing

BUILT_IN = "built-in"
_SOURCE_CHARS = 20
_NAME_CHARS = 32

COLUMNS = [
    Column("kind", lambda one: one.kind),
    Column("name", lambda one: _end(one.name, _NAME_CHARS)),
    Column("source", lambda one: _end(one.source, _SOURCE_CHARS)),
    Column("overrides", lambda one: ", ".join(_end(source, 12) for source in one.overrides[-1:]) or "-"),
]
WIDE = [
    Column("kind", lambda one: one.kind),
    Column("name", lambda one: one.name),
    Column("source", lambda one: one.source),
    Column("overrides", lambda one: ", ".join(one.overrides) or "-"),
    Column("file", lambda one: one.file),
]


class DocsOf(StrEnum):
    """What `content docs` writes pages of."""

    causes = "causes"
    actions = "actions"
    engines = "engines"


Folders = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[DIR]...", help="Content folders; without one, those of the settings.", show_default=False),
]


def register(app: typer.Typer) -> None:
    """Add `content list|check|docs|reload`."""
    content = typer.Typer(no_args_is_help=True, help="Rules, trees, causes and pages: ours and your own.")
    app.add_typer(content, name="content")

    @content.command("list")
    def list_(
        kind: Annotated[str | None, typer.Option("--kind", help="Only rule, tree, cause, page, ...")] = None,
        own: Annotated[bool, typer.Option("--own", help="Only what comes from your folders.")] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """List what is loaded: where each object is from, and which of its name it overrides."""
        listing = call(lambda client: client.content())
        kinds = sorted({one.kind for one in listing.objects})
        if kind is not None and kind not in kinds:
            raise BadInputError(f"there is no content of kind {kind!r}", remedy=f"one of {', '.join(kinds)}")
        shown = [
            one
            for one in listing.objects
            if (kind is None or one.kind == kind) and not (own and one.source == BUILT_IN)
        ]
        if output in (Output.json, Output.yaml):
            print_data(listing.model_copy(update={"objects": shown}).model_dump(mode="json"), output)
            return
        columns = WIDE if output is Output.wide else COLUMNS
        print_rows(shown, columns, Output.table, empty="no content of yours is loaded: set `content: [DIR]`")
        _tell_failure(listing)

    @content.command()
    def check(folders: Folders = None, output: OutputOption = Output.table) -> None:
        """Check folders without a controller, as loading does, and run their unit tests. Exit 2 when there is an error.

        They are laid over the built-in content in the order given.
        """
        from fleetctl.controller.content.cases import run_cases
        from fleetctl.controller.content.content import BadContentError
        from fleetctl.controller.content.load import load_content

        given = list(folders) if folders else list(current().settings().content)
        problems: list[ContentProblem] = []
        objects: list[dict[str, object]] = []
        num_checks = 0
        try:
            loaded = load_content(given)
        except BadContentError as error:
            problems += error.problems
        else:
            cases = run_cases(loaded)
            num_checks = cases.num_checks
            problems += [*cases.problems, *loaded.warnings]
            objects = [dataclasses.asdict(one) for one in loaded.objects if one.source != BUILT_IN]
        if output in (Output.json, Output.yaml):
            shown = [dataclasses.asdict(problem) for problem in problems]
            print_data({"problems": shown, "objects": objects, "num_checks": num_checks}, output)
        else:
            _print_problems(problems, given, len(objects), num_checks)
        if any(problem.severity == "error" for problem in problems):
            raise typer.Exit(2)

    @content.command()
    def reload(output: OutputOption = Output.table) -> None:
        """Make the controller read its content folders again. Bad content is refused, and nothing changes."""
        listing = call(lambda client: client.reload_content())
        if output in (Output.json, Output.yaml):
            print_data(listing.model_dump(mode="json"), output)
            return
        state = listing.state
        for problem in listing.problems:
            out.stderr().print(f"{problem.file}: {problem.place}: {problem.reason}", markup=False)
        out.stdout().print(
            f"loaded {_counted(state.own_objects, 'object')} of {_counted(len(state.folders), 'folder')},"
            f" {state.overrides} of them override others",
            markup=False,
        )

    @content.command()
    def docs(
        folder: Annotated[Path, typer.Argument(help="Where the pages go; it is made when it is not there.")],
        folders: Annotated[
            list[Path] | None, typer.Option("--content", help="Folders of your own, laid over the built-in content.")
        ] = None,
        of: Annotated[DocsOf, typer.Option("--of", help="What the pages are of.")] = DocsOf.causes,
        check_only: Annotated[bool, typer.Option("--check", help="Write nothing; exit 2 when a page is old.")] = False,
    ) -> None:
        """Write a page for each cause (how it shows, what to do), for each action, or for each kind of engine."""
        from fleetctl.controller.content.load import load_content
        from fleetctl.controller.content.made_docs import write_action_docs, write_cause_docs, write_engine_docs

        if of is DocsOf.engines:
            changed, num_pages = write_engine_docs(folder, dry_run=check_only)
        else:
            write = write_cause_docs if of is DocsOf.causes else write_action_docs
            changed, num_pages = write(load_content(list(folders or ())), folder, dry_run=check_only)
        if check_only and changed:
            told = f"{_counted(len(changed), 'page')} of {folder} are old: {', '.join(changed[:5])}"
            raise BadInputError(told, remedy="run it without --check")
        out.stderr().print(f"{_counted(num_pages, 'page')}, {len(changed)} of them changed", markup=False)


def _print_problems(problems: Sequence[ContentProblem], folders: Sequence[Path], objects: int, num_checks: int) -> None:
    for problem in problems:
        out.stdout().print(out.visible(str(problem)), markup=False)
    errors = sum(problem.severity == "error" for problem in problems)
    told = [_counted(errors, "error"), _counted(len(problems) - errors, "warning")]
    if not errors or objects:
        told += [_counted(objects, "object"), _counted(num_checks, "check of cases", "checks of cases")]
    out.stderr().print(f"{_counted(len(folders), 'folder')}: {', '.join(told)}")


def _tell_failure(listing: ContentListing) -> None:
    """What is listed is older than what lies in the folders: that must not look like success."""
    if listing.state.failed_at is None:
        return
    out.stderr().print("the newest content can't be loaded, older content is in force:", style="red")
    for problem in listing.problems:
        if problem.severity == "error":
            place = f"{problem.place}: " if problem.place else ""
            line = f":{problem.line}" if problem.line else ""
            out.stderr().print(f"  {problem.file}{line}: {place}{problem.reason}", markup=False)


def _counted(count: int, noun: str, plural: str = "") -> str:
    return f"{count} {noun if count == 1 else plural or noun + 's'}"


def _end(text: str, chars: int) -> str:
    """The end of what is too long: of a path, that is what tells it from others."""
    return text if len(text) <= chars else f"…{text[1 - chars :]}"
