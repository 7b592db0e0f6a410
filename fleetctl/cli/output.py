"""How results reach a person or a script: table, wide, json or yaml on stdout; errors and progress on stderr."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


class Output(StrEnum):
    """Forms of a result: two for people, two for scripts."""

    table = "table"
    wide = "wide"
    json = "json"
    yaml = "yaml"


OutputOption = Annotated[Output, typer.Option("-o", "--output", help="How to print the result.")]

_STATES_OF_STYLE = {
    "green": ("ready", "active", "succeeded", "resolved", "yes"),
    "cyan": ("starting", "running", "verifying", "approved", "mitigating"),
    "yellow": ("pending", "proposed", "cordoned", "draining", "drained", "not_ready", "ticket"),
    "magenta": ("unknown", "unreachable", "undone"),
    "red": ("firing", "open", "failed", "page", "refused", "denied"),
}
STATE_STYLE = {state: style for style, states in _STATES_OF_STYLE.items() for state in states}

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}


@dataclass(frozen=True, slots=True)
class Column:
    """One column: a heading, how to read a row, and whether only `-o wide` shows it."""

    title: str
    read: Callable[[Any], str]
    wide: bool = False
    right: bool = False


def stdout() -> Console:
    """Where results go. Made anew for each use: tests exchange sys.stdout."""
    return Console(file=sys.stdout, highlight=False, emoji=False, soft_wrap=not sys.stdout.isatty())


def stderr() -> Console:
    """Where errors and progress go."""
    return Console(file=sys.stderr, highlight=False, emoji=False, soft_wrap=True)


def print_rows(rows: Sequence[BaseModel], columns: Sequence[Column], output: Output, *, empty: str) -> None:
    """A list: one row each, or the whole objects for a script. `empty` says what an empty list means."""
    if output in (Output.json, Output.yaml):
        print_data([row.model_dump(mode="json") for row in rows], output)
        return
    if not rows:
        stderr().print(empty)
        return
    shown = [column for column in columns if output is Output.wide or not column.wide]
    if not sys.stdout.isatty():
        _print_plain([c.title for c in shown], [[c.read(row) for c in shown] for row in rows])
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in shown:
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(styled(column.read(row)) for column in shown))
    stdout().print(table)


def print_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, empty: str) -> None:
    """Rows of text that are no wire objects. `empty` says what no rows mean."""
    if not rows:
        stderr().print(empty, markup=False)
    elif not sys.stdout.isatty():
        _print_plain(titles, rows)
    else:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for title in titles:
            table.add_column(Text(title), overflow="fold")
        for row in rows:
            table.add_row(*(styled(cell) for cell in row))
        stdout().print(table)


def print_data(data: Any, output: Output) -> None:
    """A value for a script: JSON, or YAML when asked."""
    if output is Output.yaml:
        sys.stdout.write(yaml.safe_dump(data, sort_keys=False, allow_unicode=True))
    else:
        sys.stdout.write(json.dumps(_finite(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(data: Any) -> Any:
    """JSON has no NaN and no infinity: they become text, as in Prometheus' API."""
    match data:
        case float() if not math.isfinite(data):
            return "NaN" if math.isnan(data) else "+Inf" if data > 0 else "-Inf"
        case dict():
            return {key: _finite(value) for key, value in data.items()}
        case list() | tuple():
            return [_finite(value) for value in data]
        case _:
            return data


def print_fields(title: str, fields: Sequence[tuple[str, str]]) -> None:
    """One object: a name and value a line; lines without a value are left out."""
    console = stdout()
    console.print(Text(visible(title), style="bold"))
    width = max((len(name) for name, _ in fields), default=0)
    for name, value in fields:
        if value:
            console.print(Text(f"  {name:<{width}}  ", style="dim"), styled(value), sep="")


def styled(value: str) -> Text:
    """The cell in its state's colour; control characters are shown, not sent to the terminal."""
    return Text(visible(value), style=STATE_STYLE.get(value, ""))


def visible(text: str) -> str:
    """Text from outside (labels, rule files) cannot steer the terminal: control characters are spelled out."""
    return text.translate(_CONTROL)


def _print_plain(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns padded by spaces and nothing else: what grep and awk expect."""
    cells = [[visible(cell) for cell in row] for row in rows]
    widths = [max(len(line[i]) for line in [titles, *cells]) for i in range(len(titles))]
    for line in [[title.upper() for title in titles], *cells]:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")


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


def number(value: float | None) -> str:
    """A number for people; "-" when not known."""
    return "-" if value is None else f"{value:.4g}"


def ratio(value: float | None) -> str:
    """A ratio in percent; "-" when not known."""
    return "-" if value is None else f"{value:.0%}"
