"""`notify`: who can be told, how that goes, and a test of it. What was told: `get notifications`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fleetctl.cli.context import call, command_group, whoami
from fleetctl.cli.output import DATA, ListOutput, ListOutputOption, Output, OutputOption, print_data, print_rows, stdout
from fleetctl.cli.record_columns import NOTIFICATION_COLUMNS, RECEIVER_COLUMNS
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.wire.notification import Notification, NotificationState, Receiver

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient

NONE = "no receivers: name some in notifications.receivers"


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = command_group(app, "notify")

    @group.command("list")
    def list_receivers(output: ListOutputOption = ListOutput.table) -> None:
        """List who can be told, what waits for them, and whether they took the last message."""
        print_rows(call(lambda client: client.receivers()), RECEIVER_COLUMNS, output, empty=NONE)

    @group.command("show")
    def show(
        name: Annotated[str, typer.Argument(help="Name of the receiver; `fleetctl notify list` lists them.")],
        output: OutputOption = Output.table,
    ) -> None:
        """Show one receiver: which incidents it is told of, and its last messages."""

        async def read(client: ControllerClient) -> tuple[Receiver, list[Notification]]:
            found = _named(await client.receivers(), name)
            return found, [one for one in await client.notifications() if one.receiver == name]

        found, told = call(read)
        if output in DATA:
            shown = [one.model_dump(mode="json") for one in told]
            print_data({**found.model_dump(mode="json"), "notifications": shown}, output)
            return
        print_rows([found], RECEIVER_COLUMNS, Output.table, empty="")
        for route in found.routes or ["no incident: no route names it"]:
            stdout().print(f"told of: {route}", markup=False)
        if told:
            stdout().print()
            print_rows(told[-20:], NOTIFICATION_COLUMNS, Output.table, empty="")

    @group.command("test")
    def test(
        name: Annotated[str, typer.Argument(help="Name of the receiver; default: each of them.")] = "",
        output: OutputOption = Output.table,
    ) -> None:
        """Tell a receiver that this is a test, and say how that went. Fails when one of them did not take it."""

        async def tell(client: ControllerClient) -> list[Notification]:
            receivers = await client.receivers()
            names = [_named(receivers, name).name] if name else [one.name for one in receivers]
            return [await client.test_receiver(one, whoami()) for one in names]

        told = call(tell)
        if not told:
            raise BadInputError(NONE, remedy="see docs/notifications.md: fleetctl config explain notifications")
        if output in DATA:
            print_data([one.model_dump(mode="json") for one in told], output)
        else:
            for one in told:
                why = one.why.removeprefix(f"receiver {one.receiver}: ")
                stdout().print(f"{one.receiver}: {one.state.value}: {why}", markup=False)
        missed = [one for one in told if one.state is not NotificationState.DELIVERED]
        if missed:
            names = ", ".join(one.receiver for one in missed)
            raise FleetctlError(
                f"{len(missed)} of {len(told)} receivers did not take the test: {names}",
                remedy=f"fleetctl notify show {missed[0].receiver}",
            )


def _named(receivers: list[Receiver], name: str) -> Receiver:
    found = next((one for one in receivers if one.name == name), None)
    if found is None:
        known = ", ".join(one.name for one in receivers) or "none"
        raise BadInputError(f"there is no receiver {name[:100]}; there are: {known}", remedy="fleetctl notify list")
    return found
