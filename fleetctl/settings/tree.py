"""All settings, one typed tree: each limit is written here once, with its bounds, its default and what it means.

Flags, environment variables, the configuration of our processes and docs/settings.md follow from it. What the file and
the environment say is read in `fleetctl.settings.load`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, PrivateAttr, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, PydanticBaseSettingsSource, SettingsConfigDict

from fleetctl.kit.errors import BadInputError
from fleetctl.settings.alertmanager import AlertmanagerPeer, DeliverySettings, WebhookSettings
from fleetctl.settings.autoscaler import AutoscalerSettings
from fleetctl.settings.controller import (
    ActionSettings,
    AuditSettings,
    ControllerSettings,
    IncidentSettings,
    LogSettings,
)
from fleetctl.settings.fleet import FleetSettings
from fleetctl.settings.gateway import GatewaySettings
from fleetctl.settings.kubernetes import ProviderSettings
from fleetctl.settings.notifications import LinkSettings, NotificationSettings
from fleetctl.settings.rollouts import RolloutSettings
from fleetctl.settings.section import LABEL_NAME
from fleetctl.settings.signals import SignalSettings

ALIAS_NAME = r"^[a-zA-Z][a-zA-Z0-9_-]{0,40}$"


def default_state_dir() -> Path:
    """`$XDG_STATE_HOME/fleetctl`, or the place that the XDG base directory specification gives."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fleetctl"


class Settings(BaseSettings):
    """The whole tree, checked. Made from values alone: see `load_settings` for file, environment and flags."""

    model_config = SettingsConfigDict(
        env_prefix="FLEETCTL_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    state_dir: Path = Field(
        default_factory=default_state_dir,
        description="Where state, logs, tokens and incidents live.",
        json_schema_extra={"default": "$XDG_STATE_HOME/fleetctl, or ~/.local/state/fleetctl"},
    )
    log: LogSettings = Field(default=LogSettings())
    controller: ControllerSettings = Field(default=ControllerSettings())
    actions: ActionSettings = Field(default=ActionSettings())
    rollouts: RolloutSettings = Field(default=RolloutSettings())
    autoscaler: AutoscalerSettings = Field(default=AutoscalerSettings())
    incidents: IncidentSettings = Field(default=IncidentSettings())
    audit: AuditSettings = Field(default=AuditSettings())
    notifications: NotificationSettings = Field(default=NotificationSettings())
    links: LinkSettings = Field(default=LinkSettings())
    signals: SignalSettings = Field(default=SignalSettings())
    gateway: GatewaySettings = Field(default=GatewaySettings())
    fleet: FleetSettings = Field(default=FleetSettings())
    providers: ProviderSettings = Field(default=ProviderSettings())
    content: Annotated[tuple[Path, ...], NoDecode] = Field(
        default=(), max_length=50, description="Folders with rules, trees, pages and other content of your own."
    )
    alertmanagers: list[AlertmanagerPeer] = Field(
        default_factory=list,
        max_length=16,
        description="Peers of one cluster: our alerts go to all of them, silences are theirs. Each a URL or a mapping.",
    )
    external_labels: dict[Annotated[str, Field(pattern=LABEL_NAME)], str] = Field(
        default_factory=dict,
        max_length=50,
        description="Added to every alert that goes out; a label that the alert has itself stays.",
    )
    aliases: dict[Annotated[str, Field(pattern=ALIAS_NAME)], Annotated[str, Field(min_length=1, max_length=1000)]] = (
        Field(
            default_factory=dict,
            max_length=100,
            description="Words of your own for the command line: with `{bad: get nodes -l phase!=ready}` the word `bad`"
            " lists them; what is typed behind it is added. A command's own name always means the command.",
        )
    )
    delivery: DeliverySettings = Field(default=DeliverySettings())
    webhook: WebhookSettings = Field(default=WebhookSettings())

    _origins: dict[str, str] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _starts_none_beside_pods(cls, tree: Any) -> Any:
        """Where pods are nodes, none is started on this machine unless somebody says how many."""
        fleet = tree.get("fleet", {}) if isinstance(tree, dict) else None
        if not isinstance(fleet, dict) or "nodes" in fleet or not _has_pods(tree.get("providers")):
            return tree
        return {**tree, "fleet": {**fleet, "nodes": 0}}

    @model_validator(mode="after")
    def _knows_the_key_of_pods(self) -> Self:
        pods = self.providers.kubernetes
        if pods is not None and pods.api_key and pods.api_key not in self.fleet.api_keys:
            raise ValueError(f"providers.kubernetes.api_key: fleet.api_keys has no {pods.api_key}")
        return self

    @field_validator("state_dir")
    @classmethod
    def _is_absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("content", mode="before")
    @classmethod
    def _is_list_of_folders(cls, given: Any) -> Any:
        """A variable has them as JSON, or as `PATH` has its folders."""
        if not isinstance(given, str):
            return given
        return json.loads(given) if given.lstrip().startswith("[") else given.split(os.pathsep)

    @field_validator("content")
    @classmethod
    def _are_absolute(cls, folders: tuple[Path, ...]) -> tuple[Path, ...]:
        return tuple(folder.expanduser().absolute() for folder in folders)

    @field_validator("alertmanagers")
    @classmethod
    def _named_once(cls, peers: list[AlertmanagerPeer]) -> list[AlertmanagerPeer]:
        urls = [peer.url for peer in peers]
        if len(urls) != len(set(urls)):
            raise ValueError(f"one is named twice in {', '.join(urls)}")
        return peers

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Values alone: the environment is a layer of its own in `fleetctl.settings.load`."""
        return (init_settings,)

    def origin_of(self, key: str) -> str:
        """Where a dotted key's value comes from: "default", a file, a variable or "flag"; several for a mapping."""
        within = [origin for place, origin in self._origins.items() if f"{place}.".startswith(f"{key}.")]
        if within:
            return ", ".join(dict.fromkeys(within))
        around = [origin for place, origin in self._origins.items() if key.startswith(f"{place}.")]
        return around[-1] if around else "default"

    @property
    def run_dir(self) -> Path:
        """The run folders of this machine's processes."""
        return self.state_dir / "run"

    @property
    def incidents_dir(self) -> Path:
        """Where post-mortems and black boxes are written."""
        return self.incidents.dir or self.state_dir / "incidents"

    @property
    def audit_dir(self) -> Path:
        """Where exported rows of the audit go."""
        return self.audit.dir or self.state_dir / "audit"

    @property
    def exported_dir(self) -> Path:
        """Where incidents are written before they are removed."""
        return self.state_dir / "exported"

    @property
    def receipt_key_file(self) -> Path:
        """Holds the private key that receipts of drains are signed with."""
        return self.state_dir / "receipts.key"

    @property
    def node_token_file(self) -> Path:
        """Holds the token that nodes want of us."""
        return self.state_dir / "node.token"

    @property
    def controller_token_file(self) -> Path:
        """Holds the token that the controller wants for changes."""
        return self.state_dir / "controller.token"

    @property
    def database_url(self) -> str:
        """The controller's state, in SQLAlchemy's notation."""
        return self.controller.database_url or f"sqlite:///{self.state_dir / 'controller.sqlite'}"

    @property
    def stale_after_s(self) -> float:
        """The age from which a value is no evidence. A Prometheus that scrapes every 15 s is not stale after 10."""
        prometheus = self.signals.prometheus
        if prometheus is None:
            return self.controller.stale_after_s
        return max(self.controller.stale_after_s, 2 * prometheus.scrape_interval_s + prometheus.interval_s)

    def controller_token(self) -> str | None:
        """The token for changes: from the settings, else from the file that `fleetctl up` made."""
        if self.controller.token is not None:
            return self.controller.token.get_secret_value()
        return read_token(self.controller_token_file)

    def node_token(self) -> str:
        """The token that nodes want of us. Raises BadInputError when there is none."""
        token = read_token(self.node_token_file)
        if not token:
            raise BadInputError(f"{self.node_token_file}: no node token", remedy="run `fleetctl up` once: it makes one")
        return token

    def revealed(self) -> dict[str, Any]:
        """The tree as JSON values with its secrets, for a file that only our own processes may read."""
        return {key: _revealed(value) for key, value in self.model_dump().items()}


def read_token(path: Path) -> str | None:
    """The token in the file; None when there is no such file, or nothing in it. Raises BadInputError for no token."""
    try:
        return path.read_text("ascii").strip() or None
    except OSError:
        return None
    except UnicodeDecodeError as error:
        raise BadInputError(
            f"{path}: no token in it: not ASCII", remedy="`fleetctl up` makes one where none is"
        ) from error


def _revealed(value: Any) -> Any:
    match value:
        case Mapping():
            return {key: _revealed(one) for key, one in value.items()}
        case list() | tuple():
            return [_revealed(one) for one in value]
        case frozenset():
            return sorted(value)
        case SecretStr():
            return value.get_secret_value()
        case Path():
            return str(value)
        case _:
            return value


def _has_pods(providers: Any) -> bool:
    return isinstance(providers, dict) and providers.get("kubernetes") is not None
