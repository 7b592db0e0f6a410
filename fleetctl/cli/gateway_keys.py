"""`gateway key` and `gateway tenants`: API keys of tenants, and whether a tenants file is right. Works on the file."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Annotated

import typer

from fleetctl.cli.context import current
from fleetctl.cli.output import DATA, Column, Output, OutputOption, print_data, print_rows, stderr, stdout
from fleetctl.kit.errors import BadInputError

KEY_COLUMNS = [
    Column("tenant", lambda k: k.tenant),
    Column("id", lambda k: k.id),
    Column("made", lambda k: k.made or "-"),
    Column("note", lambda k: k.note),
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="The tenants file; default: the setting gateway.tenants_file.")
]


def register(gateway: typer.Typer) -> None:
    """Add the commands to the group `gateway`."""
    key = typer.Typer(help="API keys of tenants.", no_args_is_help=True)
    tenants = typer.Typer(help="The file of tenants and their limits.", no_args_is_help=True)
    gateway.add_typer(key, name="key")
    gateway.add_typer(tenants, name="tenants")

    @key.command("new")
    def new(
        tenant: Annotated[str, typer.Argument(help="Whose key it is; a tenant that is not in the file is added.")],
        note: Annotated[str, typer.Option("--note", help="What it is for.")] = "",
        file: FileOption = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Make a key, print it this once, and write its hash into the tenants file. Running gateways take it up."""
        from fleetctl.gateway.admission.tenants_file import add_key
        from fleetctl.kit.api_key import digest_of, shown_id

        path = _path(file)
        made = add_key(path, tenant, note=note, made=dt.datetime.now(dt.UTC).date())
        key_id = shown_id(digest_of(made.encode()))
        if output in DATA:
            print_data({"tenant": tenant, "id": key_id, "key": made, "file": str(path)}, output)
            return
        stdout().print(made, markup=False, soft_wrap=True)
        stderr().print(
            f"key {key_id} of tenant {tenant}: keep it, it is shown only now; {path} has its hash", markup=False
        )

    @key.command("list")
    def list_keys(file: FileOption = None, output: OutputOption = Output.table) -> None:
        """List the keys by the first digits of their hashes. To take one back, delete its line in the file."""
        from fleetctl.gateway.admission.tenants_file import list_keys as keys_of

        print_rows(keys_of(_path(file)), KEY_COLUMNS, output, empty="no keys")

    @tenants.command("check")
    def check(
        file: Annotated[Path | None, typer.Argument(help="Default: the setting gateway.tenants_file.")] = None,
    ) -> None:
        """Say whether a tenants file is right; exit code 2 with file, line and reason when it is not."""
        from fleetctl.gateway.admission.tenants_file import read_tenants

        path = _path(file, "name it")
        book = read_tenants(path)
        with_key = set(book.names_by_digest.values())
        without = [name for name in book.tenants if name not in with_key]
        told = f"{path}: right: {len(book.tenants)} tenants, {len(book.names_by_digest)} keys"
        stdout().print(told + (f"; without a key: {', '.join(without)}" if without else ""), markup=False)


def _path(given: Path | None, how: str = "give --file") -> Path:
    path = given or current().settings().gateway.tenants_file
    if path is None:
        raise BadInputError("no tenants file is set", remedy=f"{how}, or set gateway.tenants_file")
    return path
