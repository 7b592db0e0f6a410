"""`fleetctl config`: the settings in force and where they come from, and what each of them means."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterator
from typing import Annotated, Any

import typer
import yaml
from pydantic import BaseModel, SecretStr

from fleetctl.cli.context import current
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_fields, stdout
from fleetctl.settings.document import SettingDoc, markdown, setting_docs
from fleetctl.settings.tree import Settings

WIDTH = 80
YAML_END = "...\n"  # what safe_dump puts after a bare value
URL_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@/]*@")


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Settings: in force, and explained.", no_args_is_help=True)
    app.add_typer(group, name="config")

    @group.command("show")
    def show(output: OutputOption = Output.yaml) -> None:
        """Print every setting after file, environment and flags, with where it comes from. Secrets are masked."""
        settings = current().settings()
        if output is Output.json:
            print_data(masked(settings.model_dump()), output)
        else:
            sys.stdout.write("".join(f"{line}\n" for line in annotated_yaml(settings)))

    @group.command("explain")
    def explain(
        key: Annotated[str, typer.Argument(help="A setting or a section, e.g. controller.port; default: all.")] = "",
        as_markdown: Annotated[bool, typer.Option("--markdown", help="As a page: what docs/settings.md is.")] = False,
        output: OutputOption = Output.table,
    ) -> None:
        """Say what settings mean, with their bounds, defaults and variables."""
        if as_markdown:
            sys.stdout.write(markdown())
            return
        found = setting_docs(key)
        if output in DATA:
            print_data([_plain_doc(one) for one in found], output)
        elif len(found) == 1:
            print_fields(found[0].key, [*_plain_doc(found[0]).items()][1:])
        else:
            for one in found:
                _print_doc(one)


def _print_doc(one: SettingDoc) -> None:
    """A key with its value's kind, bounds and default, and its meaning below: no column is too narrow for either."""
    if one.is_section:
        stdout().print()
        _print_wrapped(f"{one.key}: {one.description}", "", "  ")
        return
    facts = [one.kind, one.bounds, f"default {one.default}" if one.default else ""]
    _print_wrapped(f"{one.key}: {', '.join(fact for fact in facts if fact)}", "  ", "      ")
    _print_wrapped(one.description, "      ", "      ")


def _print_wrapped(text: str, first: str, rest: str) -> None:
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
    )
    stdout().print("\n".join(lines), markup=False, soft_wrap=True)


def _plain_doc(one: Any) -> dict[str, str]:
    return {
        "key": one.key,
        "meaning": one.description,
        "value": one.kind,
        "bounds": one.bounds,
        "default": one.default,
        "variable": one.variable,
    }


def annotated_yaml(settings: Settings) -> Iterator[str]:
    """The settings as lines of YAML that can be read back, each value with where it comes from as a comment."""
    yield from _annotated(settings, settings, "", "")


def _annotated(section: BaseModel, settings: Settings, prefix: str, indent: str) -> Iterator[str]:
    for name in type(section).model_fields:
        key, value = f"{prefix}{name}", getattr(section, name)
        if isinstance(value, BaseModel):
            yield f"{indent}{name}:"
            yield from _annotated(value, settings, f"{key}.", f"{indent}  ")
        else:
            plain = section.model_dump(include={name})[name]
            text = yaml.safe_dump(masked(plain), default_flow_style=True, allow_unicode=True, width=10**9)
            line = f"{indent}{name}: {text.removesuffix(YAML_END).strip()}"
            yield f"{line:<50}  # {settings.origin_of(key)}"


def masked(tree: Any) -> Any:
    """The tree as plain data, without secrets: secret values and passwords inside URLs become ***."""
    if isinstance(tree, dict):
        return {key: masked(value) for key, value in tree.items()}
    if isinstance(tree, frozenset):
        return sorted(tree)
    if isinstance(tree, list | tuple):
        return [masked(value) for value in tree]
    if isinstance(tree, SecretStr):
        return "***"
    if isinstance(tree, str):
        return URL_PASSWORD.sub(r"\1:***@", tree)
    if tree is None or isinstance(tree, bool | int | float):
        return tree
    return str(tree)
