"""What every command starts from: settings after flags, the controller's address, and one way to call it."""

from __future__ import annotations

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from fleetctl.kit.hidden_imports import hidden_imports

if TYPE_CHECKING:
    from fleetctl.client import ControllerClient
    from fleetctl.settings.tree import Settings

T = TypeVar("T")

OPTIONS_WITH_VALUE = frozenset({"--config", "--state-dir", "--controller", "--log-level"})


def _of_setting(flag: str, help: str, default: str) -> Any:
    """A flag before the verb: as those of `up`, without reading the settings' tree, which takes a quarter of a
    second (tests/fleetctl/cli/test_command_table.py holds the words to it)."""
    return typer.Option(flag, help=help, show_default=default)


@dataclass(slots=True)
class Context:
    """Filled by the options before the verb; commands read it with `current()`."""

    config: Path | None = None
    state_dir: Path | None = None
    controller_url: str | None = None
    log_level: str | None = None

    def settings(self) -> Settings:
        """Settings with the global flags laid over file and environment."""
        from fleetctl.settings.load import load_settings

        flags = {
            "state_dir": self.state_dir,
            "controller": {"url": self.controller_url},
            "log": {"level": self.log_level},
        }
        return load_settings(self.config, flags)


_current = Context()


def current() -> Context:
    """The options before the verb, as this process was given them."""
    return _current


def controller_url(settings: Settings) -> str:
    """Where the controller is: as told, else where `fleetctl up` recorded it, else the default address."""
    if settings.controller.url is not None:
        return settings.controller.url
    from fleetctl.providers.process import ProcessTable

    recorded = ProcessTable(settings.run_dir).spec("controller").get("url")
    return recorded if isinstance(recorded, str) else settings.controller.base_url


def gateway_url(settings: Settings) -> str:
    """Where the gateway is: where `fleetctl up` recorded it, else the default address."""
    from fleetctl.providers.process import ProcessTable

    recorded = ProcessTable(settings.run_dir).spec("gateway").get("url")
    return recorded if isinstance(recorded, str) else settings.gateway.base_url


def make_client(settings: Settings, *, reuses_lists: bool = False) -> ControllerClient:
    """A client of the controller that the settings name. `reuses_lists`: see there."""
    with hidden_imports("httpx._main"):  # its command line, with all that it draws with
        from fleetctl.client import ControllerClient

    return ControllerClient(
        controller_url(settings),
        settings.controller_token(),
        others=settings.controller.peers,
        reuses_lists=reuses_lists,
    )


def call(work: Callable[[ControllerClient], Awaitable[T]], *, reuses_lists: bool = False) -> T:
    """Run one conversation with the controller and close the connection."""

    async def converse() -> T:
        async with make_client(current().settings(), reuses_lists=reuses_lists) as client:
            return await work(client)

    return asyncio.run(converse())


def whoami() -> str:
    """Whom a command is for, beside what its token says: the login name, or the uid where there is none.

    A named token says it all: then nothing.
    """
    from fleetctl.wire.identity import NO_CLAIM, TOKEN_PREFIX

    if (current().settings().controller_token() or "").startswith(TOKEN_PREFIX):
        return NO_CLAIM
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid-{os.getuid()}"


def _print_version(is_wanted: bool) -> None:
    """Print which fleetctl this is, and stop."""
    if is_wanted:
        from fleetctl.kit.version import software_version

        typer.echo(f"fleetctl {software_version()}")
        raise typer.Exit


def set_globals(
    config: Annotated[Path | None, typer.Option("--config", help="Settings file (YAML).", show_default=False)] = None,
    state_dir: Annotated[
        Path | None,
        _of_setting(
            "--state-dir",
            "Where state, logs, tokens and incidents live.",
            "$XDG_STATE_HOME/fleetctl, or ~/.local/state/fleetctl",
        ),
    ] = None,
    controller: Annotated[
        str | None,
        _of_setting(
            "--controller", "Where clients, and readers of its alerts, find the controller.", "http://<host>:<port>"
        ),
    ] = None,
    log_level: Annotated[str | None, _of_setting("--log-level", "Least severe level that is written.", "info")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Operate a fleet of LLM serving nodes: see it, find the cause, act safely."""
    _current.config, _current.state_dir = config, state_dir
    _current.controller_url, _current.log_level = controller, log_level


def command_group(app: typer.Typer, name: str, help: str = "") -> typer.Typer:
    """The group of this name; made when it is not there yet."""
    for known in app.registered_groups:
        if known.name == name and known.typer_instance is not None:
            known.help = help or known.help
            return known.typer_instance
    group = typer.Typer(no_args_is_help=True, help=help or None)
    app.add_typer(group, name=name)
    return group
