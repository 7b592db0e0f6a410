"""How results reach a person or a script: table, wide, json or yaml on stdout; errors and progress on stderr."""

from __future__ import annotations

import json
import math
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from fleetctl.kit.printable import one_line, printable

if TYPE_CHECKING:
    from pydantic import BaseModel


F = TypeVar("F", bound=StrEnum)


class Output(StrEnum):
    """Forms of a result: two for people, two for scripts."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"


class ListOutput(StrEnum):
    """Forms of a list: those of `Output`, and one name a line."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"
    name = "name"


DATA = frozenset({"json", "yaml"})
"""Forms for scripts, of `Output` and of `ListOutput`."""

JSONPATH = "jsonpath="


def _form(forms: type[F]) -> Callable[[str], F]:
    """Reads what stands behind `-o`. With `jsonpath=` it is JSON of which only what the path finds is printed."""

    def parse(text: str) -> F:
        if text.startswith(JSONPATH):
            from fleetctl.cli.json_path import parse_path

            emitted.path = parse_path(text.removeprefix(JSONPATH))
            return forms("json")
        try:
            return forms(text)
        except ValueError:
            raise typer.BadParameter(f"{text[:100]!r} is none of {_words(forms)}") from None

    return parse


def _words(forms: type[StrEnum]) -> str:
    return "|".join([*forms, f"{JSONPATH}PATH"])


def _form_option(forms: type[StrEnum], help: str) -> Any:
    return typer.Option(
        "-o",
        "--output",
        help=help,
        metavar=_words(forms),
        parser=_form(forms),
        autocompletion=lambda incomplete: [one for one in (*forms, JSONPATH) if one.startswith(incomplete)],
    )


OutputOption = Annotated[Output, _form_option(Output, "How to print the result.")]
ListOutputOption = Annotated[ListOutput, _form_option(ListOutput, "How to print the list.")]

_STATES_OF_STYLE = {
    "green": ("ready", "active", "succeeded", "resolved", "yes"),
    "cyan": ("starting", "running", "verifying", "approved", "mitigating"),
    "yellow": ("pending", "proposed", "cordoned", "draining", "drained", "not_ready", "ticket"),
    "magenta": ("unknown", "unreachable", "undone"),
    "red": ("firing", "open", "failed", "page", "refused", "denied"),
}
STATE_STYLE = {state: style for style, states in _STATES_OF_STYLE.items() for state in states}


MIN_TEXT_CELLS = 16  # a terminal too narrow to wrap the last column wraps the whole line by itself
GAP = "  "


@dataclass(frozen=True, slots=True)
class Column:
    """One column: a heading, how to read a row, and whether only `-o wide` shows it.

    `sort_key` orders rows by it (None: not known, last); without one the shown text does. `is_volatile`: it changes by
    itself, so that a watch doesn't count it as a change.
    """

    title: str
    read: Callable[[Any], str]
    wide: bool = False
    right: bool = False
    sort_key: Callable[[Any], Any] | None = None
    is_volatile: bool = False


def stdout() -> Console:
    """Where results go. Made anew for each use: tests exchange sys.stdout."""
    return Console(file=sys.stdout, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Where errors and progress go."""
    return Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)


def print_rows(
    rows: Sequence[BaseModel],
    columns: Sequence[Column],
    output: Output | ListOutput,
    *,
    empty: str,
    name: Callable[[Any], str] | None = None,
) -> None:
    """A list: one row each, or the whole objects for a script. `empty` says what an empty list means."""
    if output in DATA:
        print_data([row.model_dump(mode="json") for row in rows], output)
    elif output == "name":
        read = name or columns[0].read
        sys.stdout.write("".join(f"{one_line(read(row))}\n" for row in rows))
    elif not rows:
        stderr().print(empty, markup=False)
    else:
        Table.of(rows, columns, wide=output == "wide").print()


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows of text that are no wire objects. `empty` says what no rows mean."""
    if not rows:
        stderr().print(empty, markup=False)
    else:
        Table(tuple(titles), tuple(False for _ in titles), [list(row) for row in rows]).print()


@dataclass(frozen=True, slots=True)
class Table:
    """Cells under headings, two spaces apart, the same on a terminal and in a pipe.

    The last column takes the room that is left: on a terminal it is wrapped under itself, in a pipe it runs on, so that
    a row stays one line for grep and awk.
    """

    titles: tuple[str, ...]
    right: tuple[bool, ...]
    cells: list[list[str]]

    @classmethod
    def of(cls, rows: Sequence[Any], columns: Sequence[Column], *, wide: bool) -> Table:
        """The rows' cells in the columns that this form shows."""
        shown = [column for column in columns if wide or not column.wide]
        return cls(
            tuple(column.title for column in shown),
            tuple(column.right for column in shown),
            [[column.read(row) for column in shown] for row in rows],
        )

    def widths(self) -> list[int]:
        """Terminal cells that each column needs."""
        lines = [self.titles, *([one_line(cell) for cell in row] for row in self.cells)]
        return [max(cell_len(line[i]) for line in lines) for i in range(len(self.titles))]

    def print(self, widths: Sequence[int] = (), *, with_titles: bool = True) -> None:
        """Write it to stdout. `widths` are of an earlier part of the same table, which columns keep to."""
        console = stdout()
        own = self.widths()
        columns = [max(pair) for pair in zip(own, widths or own, strict=True)]
        width = console.width if sys.stdout.isatty() else None
        lines = [[title.upper() for title in self.titles]] if with_titles else []
        for number, line in enumerate([*lines, *self.cells]):
            for text in _laid_out(line, columns, self.right, width, is_title=with_titles and number == 0):
                console.print(text, soft_wrap=True)


def _laid_out(
    cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], width: int | None, *, is_title: bool
) -> list[Text]:
    """The lines of one row."""
    line, indent = Text(), 0
    for cell, cells_wide, at_right in list(zip(cells, widths, right, strict=True))[:-1]:
        shown = one_line(cell)
        pad = " " * (cells_wide - cell_len(shown))
        line.append_text(_cell(f"{pad}{shown}" if at_right else f"{shown}{pad}", shown, is_title)).append(GAP)
        indent += cells_wide + len(GAP)
    last = one_line(cells[-1])
    if right[-1]:
        last = " " * (widths[-1] - cell_len(last)) + last
    if width is None or width - indent < MIN_TEXT_CELLS or cell_len(last) <= width - indent:
        parts = [last]
    else:
        parts = textwrap.wrap(last, width - indent, break_on_hyphens=False) or [""]
    lines = [line.append_text(_cell(parts[0], cells[-1], is_title))]
    lines += [Text(" " * indent).append_text(_cell(part, cells[-1], is_title)) for part in parts[1:]]
    for one in lines:
        one.rstrip()
    return lines


def _cell(padded: str, value: str, is_title: bool) -> Text:
    return Text(padded, style="bold" if is_title else STATE_STYLE.get(value, ""))


@dataclass(slots=True)
class Emitted:
    """What this command has written so far: a script reads one document, so an error is written only when none was.

    `path`: what is wanted of each document, given its data; None: all of it.
    """

    data: bool = False
    path: Callable[[Any], list[Any]] | None = None

    def clear(self) -> None:
        """As at the start of a command."""
        self.data, self.path = False, None


emitted = Emitted()


def print_data(data: Any, output: Output | ListOutput) -> None:
    """A value for a script: JSON, or YAML when asked; of `-o jsonpath=` a line for each value that the path finds."""
    emitted.data = True
    if emitted.path is not None:
        sys.stdout.write("".join(f"{_line(found)}\n" for found in emitted.path(finite(data))))
    elif output == "yaml":
        import yaml

        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _line(value: Any) -> str:
    """Text as it is, all else as JSON."""
    return one_line(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def finite(data: Any) -> Any:
    """JSON has no NaN and no infinity: they become text, as in Prometheus' API."""
    match data:
        case float() if not math.isfinite(data):
            return "NaN" if math.isnan(data) else "+Inf" if data > 0 else "-Inf"
        case dict():
            return {key: finite(value) for key, value in data.items()}
        case list() | tuple():
            return [finite(value) for value in data]
        case _:
            return data


def print_fields(title: str, fields: Sequence[tuple[str, str]]) -> None:
    """One object: a name and value a line; lines without a value are left out."""
    console = stdout()
    console.print(Text(one_line(title), style="bold"))
    names = max((len(name) for name, _ in fields), default=0)
    width = console.width if sys.stdout.isatty() else None
    for name, value in fields:
        if value:
            for line in _laid_out((f"  {name}", value), (names + 2, 0), (False, False), width, is_title=False):
                console.print(line, soft_wrap=True)


def styled(value: str) -> Text:
    """The cell in its state's colour; control characters are shown, not sent to the terminal."""
    return Text(visible(value), style=STATE_STYLE.get(value, ""))


def visible(text: str) -> str:
    """Text from outside (labels, rule files) cannot steer the terminal: control characters are spelled out."""
    return printable(text)


def seconds(value: float | None) -> str:
    """A duration with three significant digits; "-" when it is not known."""
    if value is None:
        return "-"
    if value < 0.9995:
        return f"{value * 1000:.3g}ms"
    if value < 120:
        return f"{value:.3g}s"
    if value < 7200:
        return f"{value / 60:.0f}m"
    return f"{value / 3600:.0f}h"


def count(value: int | None) -> str:
    """A count or a version, with every digit; "-" when not known."""
    return "-" if value is None else str(value)


def number(value: float | None) -> str:
    """A number for people; "-" when not known."""
    return "-" if value is None else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """A ratio in percent; "-" when not known."""
    return "-" if value is None else f"{value:.0%}"
