"""`get` lists things of one kind: all or named ones, selected, sorted, once or as they change."""

from __future__ import annotations

import asyncio
import difflib
import json
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

from fleetctl.cli.completion import complete_kind, complete_label, complete_name, complete_sort_key
from fleetctl.cli.context import call
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.kinds import VIEWS, Kind, KindView, event_filters, failure_view, kind_of
from fleetctl.cli.output import (
    DATA,
    Column,
    ListOutput,
    ListOutputOption,
    Table,
    emitted,
    finite,
    print_data,
    print_rows,
    stderr,
)
from fleetctl.cli.selector import Requirement, parse_selector, refuse_unknown_keys
from fleetctl.kit.errors import BadInputError, UnreachableError
from fleetctl.wire.failure import FailuresBy

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

WATCH_EVERY_S = 1.0
MAX_EVENTS = 100_000  # since a time

KindName = Annotated[
    str,
    typer.Argument(
        metavar="KIND",
        help=f"{', '.join(Kind)}; or one of them in the singular.",
        autocompletion=complete_kind,
        show_default=False,
    ),
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Only these.", autocompletion=complete_name, show_default=False),
]
Watch = Annotated[bool, typer.Option("-w", "--watch", help="Then each row again when it changes, until Ctrl-C.")]
Selectors = Annotated[
    list[str] | None,
    typer.Option(
        "-l",
        "--selector",
        metavar="KEY=VALUE",
        help="Only rows with this label, or without it (KEY!=VALUE); several with commas.",
        autocompletion=complete_label,
        show_default=False,
    ),
]
SortBy = Annotated[
    str | None,
    typer.Option(
        "--sort-by",
        metavar="COLUMN",
        help="Sort by a column; what is not known comes last.",
        autocompletion=complete_sort_key,
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("get")
    def get(
        kind: KindName,
        names: Names = None,
        selectors: Selectors = None,
        sort_by: SortBy = None,
        reverse: Annotated[bool, typer.Option("--reverse", help="In the opposite order.")] = False,
        show_all: Annotated[bool, typer.Option("--all", help="Dry runs and expired silences too.")] = False,
        by: Annotated[FailuresBy | None, typer.Option("--by", help="Failures: counted by this.")] = None,
        since: Annotated[
            str | None,
            typer.Option("--since", help="Only what happened so lately, e.g. 10m, 7d.", show_default="failures: 30d"),
        ] = None,
        watch: Watch = False,
        output: ListOutputOption = ListOutput.table,
    ) -> None:
        """List nodes, pools, gateways, alerts, incidents, runs, or things of another kind."""
        found = kind_of(kind)
        view = _view_of(found, by, since)
        listing = Listing(found, tuple(names or ()), parse_selector(selectors or ()), sort_by, reverse, show_all, view)
        if watch:
            call(lambda client: _watch(client, listing, output), reuses_lists=True)
        else:
            print_listing(listing, output)


def _view_of(kind: Kind, by: FailuresBy | None, since: str | None) -> KindView | None:
    """What these two options ask for; None without them. Raises BadInputError where they say nothing."""
    from_at = None if since is None else time.time() - duration_s("--since", since, "a look back")
    if kind is Kind.failures and (by is not None or since is not None):
        return failure_view(by, from_at)
    if by is not None:
        raise BadInputError("--by is about failures", remedy="fleetctl get failures --by host --since 7d")
    return None if from_at is None else since_view(kind, from_at)


def since_view(kind: Kind, from_at: float) -> KindView:
    """The kind's rows that happened since then. Raises BadInputError of what has no time."""
    view, at_of = VIEWS[kind], VIEWS[kind].at
    if at_of is None:
        timed = ", ".join(one for one in Kind if VIEWS[one].at is not None or one is Kind.failures)
        raise BadInputError(f"--since: {kind} are as they are now", remedy=f"it is about {timed}")

    def lately(rows: Sequence[BaseModel]) -> list[BaseModel]:
        return [row for row in rows if (at := at_of(row)) is not None and at >= from_at]

    async def read_all(client: ControllerClient) -> Sequence[BaseModel]:
        return lately(await view.read_all(client))

    async def read_where(client: ControllerClient, where: Mapping[str, str]) -> Sequence[BaseModel]:
        assert view.read_where is not None
        return lately(await view.read_where(client, where))

    async def events(client: ControllerClient, where: Mapping[str, str]) -> Sequence[BaseModel]:
        return lately(await client.newest_events(MAX_EVENTS, since=from_at, **event_filters(where)))

    if kind is Kind.events:  # of which the newest are listed otherwise
        return replace(view, read_where=events)
    return replace(view, read_all=read_all, read_where=None if view.read_where is None else read_where)


def print_listing(listing: Listing, output: ListOutput) -> None:
    """Print the rows once. Raises BadInputError for a name that there isn't, after what there is."""
    view = listing.view
    rows, missing = call(listing.read)
    if missing is not None and not rows:
        raise missing
    print_rows(rows, view.columns, output, empty=view.empty, name=view.name)
    if missing is not None:
        raise missing


class Listing:
    """What was asked for: a kind, and which of its rows in which order."""

    def __init__(
        self,
        kind: Kind,
        names: Sequence[str] = (),
        selector: Sequence[Requirement] = (),
        sort_by: str | None = None,
        is_reversed: bool = False,
        with_unusual: bool = False,
        view: KindView | None = None,
    ) -> None:
        """`view`: of the kind, if not the one that `get` shows. Raises BadInputError for a column that there isn't, and
        for names of what has none."""
        self.kind = kind
        self.view = view or VIEWS[kind]
        if names and kind is Kind.events:
            raise BadInputError("events have no names", remedy="fleetctl get events -l incident=ID")
        self._names = names
        self._selector = selector
        self._sort_by = column_of(self.view, sort_by) if sort_by is not None else None
        self._is_reversed = is_reversed
        self._with_unusual = with_unusual

    async def read(
        self, client: ControllerClient, *, is_again: bool = False
    ) -> tuple[list[BaseModel], BadInputError | None]:
        """The rows, and what is wrong with a name that there isn't. `is_again`: of many, the newest are enough."""
        where = {one.key: one.value for one in self._selector if one.value and not one.is_negated}
        read_all = (is_again and self.view.read_newest) or self.view.read_all
        reading = self.view.read_where(client, where) if self.view.read_where else read_all(client)
        return self._chosen(list(await reading))

    async def turns(self, client: ControllerClient) -> AsyncGenerator[list[BaseModel], None]:
        """The rows over and over: as the controller tells that they changed, or else read each time."""
        if self.view.follow is not None:
            try:
                async with aclosing(self.view.follow(client)) as told:
                    async for rows in told:
                        yield self._chosen(list(rows))[0]
                return
            except BadInputError:  # an older controller, which tells lists alone
                pass
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            yield (await self.read(client, is_again=True))[0]

    def _chosen(self, rows: list[BaseModel]) -> tuple[list[BaseModel], BadInputError | None]:
        missing = None
        if self._names:
            by_name: dict[str, list[BaseModel]] = {}
            for row in rows:
                by_name.setdefault(self.view.name(row), []).append(row)
            wrong = [name for name in self._names if name not in by_name]
            rows = [row for name in dict.fromkeys(self._names) for row in by_name.get(name, ())]
            missing = _no_such(self.kind, wrong, list(by_name)) if wrong else None
        return self.arranged(rows), missing

    def arranged(self, rows: list[BaseModel]) -> list[BaseModel]:
        """Those that are selected, in order. Raises BadInputError for a label that this kind doesn't have."""
        if rows and not self.view.has_open_labels:
            refuse_unknown_keys(self._selector, list(self.view.labels(rows[0])), self.kind)
        # A named row is wanted, whatever it is; so is what a selector asks for by its very oddity.
        has_choice = self._names or self._with_unusual or any(one.key == "dry_run" for one in self._selector)
        found = [
            row
            for row in rows
            if (has_choice or self.view.is_usual(row))
            and all(one.accepts(self.view.labels(row)) for one in self._selector)
        ]
        if self._sort_by is None:
            return found[::-1] if self._is_reversed else found
        read = self._sort_by.sort_key or self._sort_by.read
        known = [row for row in found if read(row) not in (None, "", "-")]
        unknown = [row for row in found if read(row) in (None, "", "-")]
        return [*sorted(known, key=read, reverse=self._is_reversed), *unknown]


def column_of(view: KindView, title: str) -> Column:
    """The column of this title. Raises BadInputError."""
    for column in view.columns:
        if column.title.lower() == title.strip().lower():
            return column
    known = ", ".join(column.title.lower() for column in view.columns)
    raise BadInputError(f"--sort-by {title[:50]}: there is no such column", remedy=f"one of {known}")


def _no_such(kind: Kind, wrong: Sequence[str], known: Sequence[str]) -> BadInputError:
    remedy = _nearest(wrong[0], known) or f"fleetctl get {kind}"
    return BadInputError(f"there is no {kind.singular} named {', '.join(name[:100] for name in wrong)}", remedy=remedy)


def _nearest(word: str, known: Iterable[str]) -> str:
    """The remedy that names the word that was probably meant; empty when none is near."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


async def _watch(client: ControllerClient, listing: Listing, output: ListOutput) -> None:
    """Print every row, then each again when it has changed. A controller that is away is waited for."""
    rows, missing = await listing.read(client)
    if missing is not None and not rows:
        raise missing
    changes = Changes(listing.view, output)
    changes.print(rows)
    is_away = False
    while True:
        try:
            async for rows in listing.turns(client):
                is_away = False
                changes.print(rows)
        except UnreachableError as error:
            if not is_away:
                stderr().print(f"{error.message}; waiting for it", markup=False)
            is_away = True
        await asyncio.sleep(WATCH_EVERY_S)


class Changes:
    """Prints rows that are new or not as they were. What changes by itself (ages, load) is no change."""

    def __init__(self, view: KindView, output: ListOutput) -> None:
        self._view = view
        self._output = output
        self._known: dict[object, tuple[str, ...]] = {}
        self._widths: list[int] = []

    def print(self, rows: Sequence[BaseModel]) -> None:
        """Print those of the rows that changed since the last call."""
        changed = [row for row in rows if self._known.get(self._view.key_of(row)) != self._state(row)]
        self._known = {self._view.key_of(row): self._state(row) for row in rows}
        if not changed:
            return
        if self._output in DATA:
            # One document a line for JSON, one after the other for YAML: a stream has no end to close a list at.
            for row in changed:
                self._print_document(row)
        elif self._output == "name":
            print_rows(changed, self._view.columns, self._output, empty="", name=self._view.name)
        else:
            table = Table.of(changed, self._view.columns, wide=self._output == "wide")
            table.print(self._widths, with_titles=not self._widths)
            self._widths = [max(pair) for pair in zip(table.widths(), self._widths or table.widths(), strict=True)]
        sys.stdout.flush()

    def _print_document(self, row: BaseModel) -> None:
        data: Any = row.model_dump(mode="json")
        if self._output == "yaml":
            sys.stdout.write("---\n")
        if self._output == "yaml" or emitted.path is not None:
            print_data(data, self._output)
            return
        emitted.data = True
        sys.stdout.write(json.dumps(finite(data), ensure_ascii=False) + "\n")

    def _state(self, row: BaseModel) -> tuple[str, ...]:
        return tuple(column.read(row) for column in self._view.columns if not column.is_volatile)
