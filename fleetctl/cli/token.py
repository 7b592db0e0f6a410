"""`token`: who may ask the controller for what: named tokens with roles, made, listed and revoked."""

from __future__ import annotations

from typing import Annotated

import typer

from fleetctl.cli.context import call
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.moment import clock
from fleetctl.cli.output import (
    DATA,
    ListOutput,
    ListOutputOption,
    Output,
    OutputOption,
    print_data,
    print_rows,
    stderr,
    stdout,
)
from fleetctl.cli.record_columns import TOKEN_COLUMNS
from fleetctl.wire.identity import TokenRequest, TokenRole


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Named tokens: who may ask the controller for what.", no_args_is_help=True)
    app.add_typer(group, name="token")

    @group.command("create")
    def create(
        name: Annotated[str, typer.Argument(help="Whose it is: a person or a program, e.g. ann or ci.")],
        role: Annotated[TokenRole, typer.Option("--role", help="What it may do; each role includes those before it.")],
        expires: Annotated[
            str | None, typer.Option("--expires", help="After how long, e.g. 90d; default: never.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Make a token and print it this once. The controller keeps its hash, and takes it at once."""
        expires_in_s = None if expires is None else duration_s("--expires", expires, "a token")
        request = TokenRequest(name=name[:63], role=role, expires_in_s=expires_in_s)
        made = call(lambda client: client.create_token(request))
        if output in DATA:
            print_data(made.model_dump(mode="json"), output)
            return
        stdout().print(made.token, markup=False, soft_wrap=True)
        until = "" if made.expires_at is None else f" until {clock(made.expires_at)}"
        stderr().print(
            f"token of {made.name}, {made.role.value}{until}: keep it, it is shown only now;"
            " to use it: export FLEETCTL_CONTROLLER__TOKEN=...",
            markup=False,
        )

    @group.command("list")
    def list_tokens(output: ListOutputOption = ListOutput.table) -> None:
        """List named tokens, without the tokens. The state folder's controller.token is an admin's and not in it."""
        print_rows(
            call(lambda client: client.tokens()),
            TOKEN_COLUMNS,
            output,
            empty="no named tokens: whoever has controller.token may do everything",
        )

    @group.command("revoke")
    def revoke(
        name: Annotated[str, typer.Argument(help="Whose; `fleetctl token list` lists them.")],
        output: OutputOption = Output.table,
    ) -> None:
        """End a token now."""
        ended = call(lambda client: client.revoke_token(name))
        if output in DATA:
            print_data(ended.model_dump(mode="json"), output)
            return
        stdout().print(f"token of {ended.name} ({ended.role.value}) revoked", markup=False)

    @group.command("whoami")
    def whoami(output: OutputOption = Output.table) -> None:
        """Say whom the controller takes you for, and which role that has."""
        caller = call(lambda client: client.caller())
        if output in DATA:
            print_data(caller.model_dump(mode="json"), output)
            return
        stdout().print(f"{caller.name}, {caller.role.value}, by {caller.via}", markup=False)
