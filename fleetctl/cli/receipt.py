"""`receipt`: whether a drain's receipt is as the controller signed it; works on a file, without a controller, too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from fleetctl.cli.context import call
from fleetctl.cli.output import DATA, Output, OutputOption, print_data, stdout
from fleetctl.kit.errors import BadInputError, FleetctlError
from fleetctl.kit.signed_document import why_not_signed

MAX_FILE_BYTES = 64 * 1024 * 1024


def register(app: typer.Typer) -> None:
    """Add the commands."""
    group = typer.Typer(help="Receipts of drains: what became of each request.", no_args_is_help=True)
    app.add_typer(group, name="receipt")

    @group.command("key")
    def key() -> None:
        """Print the controller's public key. Keep it elsewhere: it is what receipts are held to."""
        stdout().print(call(lambda client: client.receipt_key()).rstrip(), markup=False, soft_wrap=True)

    @group.command("verify")
    def verify(
        receipt: Annotated[
            str, typer.Argument(help="A file with a receipt, or a receipt's id.", metavar="FILE|ID", show_default=False)
        ],
        key_file: Annotated[
            Path | None, typer.Option("--key", help="File with the public key; default: the controller's own.")
        ] = None,
        output: OutputOption = Output.table,
    ) -> None:
        """Say whether a receipt is as it was signed; exit code 1 when it is not."""
        path = Path(receipt)
        document = _read(path) if path.exists() else call(lambda client: client.signed_receipt(receipt))
        public_pem = call(lambda client: client.receipt_key()) if key_file is None else _text(key_file)
        why = why_not_signed(document, public_pem)
        if output in DATA:
            print_data(
                {"intact": not why, "why": why, "id": document.get("id"), "key_id": document.get("key_id")}, output
            )
        elif not why:
            stdout().print(f"intact: {document.get('id')}, {document.get('summary')}", markup=False)
        if why:
            raise FleetctlError(
                f"receipt {document.get('id')}: {why}", remedy="ask the controller for it: fleetctl describe receipt ID"
            )


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(_text(path))
    except ValueError as error:
        raise BadInputError(f"{path}: no JSON: {error}", remedy="fleetctl describe receipt ID -o json") from error
    if not isinstance(document, dict) or "lines" not in document:
        raise BadInputError(f"{path}: no receipt", remedy="fleetctl describe receipt ID -o json")
    return document


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInputError(f"{path}: too large for this", remedy="name a receipt or a public key")
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInputError(f"{path}: {getattr(error, 'strerror', None) or error}") from error
