"""`diff` says what differs between two revisions."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.completion import complete_revision
from fleetctl.cli.context import call
from fleetctl.cli.describe import argument_text
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, print_table, stdout
from fleetctl.wire.pool import Revision

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

First = Annotated[str, typer.Argument(metavar="REV_A", help="Id of a revision.", autocompletion=complete_revision)]
Second = Annotated[str, typer.Argument(metavar="REV_B", help="Id of another.", autocompletion=complete_revision)]


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that two revisions do not have alike; "-" where one of them does not say it."""

    what: str
    first: str
    second: str


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command("diff")
    def diff(first: First, second: Second, output: OutputOption = Output.table) -> None:
        """Show what differs between two revisions: model directory, engine arguments, adapters, prompt template."""

        async def read(client: ControllerClient) -> tuple[Revision, Revision]:
            return await client.revision(first), await client.revision(second)

        found = differences(*call(read))
        if output in DATA:
            print_data({"first": first, "second": second, "differences": [asdict(one) for one in found]}, output)
        elif first == second:
            stdout().print(f"{first} is one revision")
        else:
            print_table(("what", first, second), [(one.what, one.first, one.second) for one in found], empty="")


def differences(first: Revision, second: Revision) -> list[Difference]:
    """What the two do not have alike, the model first and then the engine's arguments by name."""
    one, other = _facts(first), _facts(second)
    return [
        Difference(what, one.get(what, "-"), other.get(what, "-"))
        for what in dict.fromkeys((*one, *sorted(one.keys() | other.keys())))
        if one.get(what) != other.get(what)
    ]


def _facts(revision: Revision) -> dict[str, str]:
    return {
        "model": revision.model,
        "model dir": revision.model_dir or "-",
        "engine": revision.engine,
        "adapters": ", ".join(revision.adapters) or "none",
        "prompt template": revision.prompt_template or "the model's own",
        **{f"--{name.replace('_', '-')}": argument_text(value) for name, value in sorted(revision.arguments.items())},
    }
