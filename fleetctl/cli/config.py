"""`fleetctl config show`: the settings in force, secrets masked."""

from __future__ import annotations

import re
from typing import Any

import typer
from pydantic import SecretStr

from fleetctl.cli.context import current
from fleetctl.cli.output import Output, OutputOption, print_data

URL_PASSWORD = re.compile(r"(?<=://)([^:/@]*):[^@/]*@")


def register(app: typer.Typer) -> None:
    group = typer.Typer(help="Settings in force.", no_args_is_help=True)
    app.add_typer(group, name="config")

    @group.command("show")
    def show(output: OutputOption = Output.yaml) -> None:
        """Print every setting after file, environment and flags. Secrets are masked."""
        print_data(masked(current().settings().model_dump()), Output.json if output is Output.json else Output.yaml)


def masked(tree: Any) -> Any:
    """The tree as plain data, without secrets: secret values and passwords inside URLs become ***."""
    if isinstance(tree, dict):
        return {key: masked(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [masked(value) for value in tree]
    if isinstance(tree, SecretStr):
        return "***"
    if isinstance(tree, str):
        return URL_PASSWORD.sub(r"\1:***@", tree)
    if tree is None or isinstance(tree, bool | int | float):
        return tree
    return str(tree)
