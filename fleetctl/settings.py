"""All settings, one typed tree. Precedence: command-line flags, `FLEETCTL_*` environment, file, defaults.

The file is `--config`, else `$FLEETCTL_CONFIG`, else `./fleetctl.yaml`, else `~/.config/fleetctl/fleetctl.yaml`.
A nested value's variable joins names with two underscores: `FLEETCTL_CONTROLLER__PORT=7701`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from fleetctl.alertmanager_settings import LABEL_NAME, AlertmanagerPeer, WebhookSettings
from fleetctl.kit.errors import BadInputError
from fleetctl.signal_settings import SignalSettings


def default_state_dir() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "fleetctl"


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class LogSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "pretty", "json"] = "auto"


class ControllerSettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=7700, ge=0, le=65535)
    url: str | None = None  # where clients find it; default: http://<host>:<port>
    token: SecretStr | None = None  # default: <state_dir>/controller.token, made by `fleetctl up`
    database_url: str | None = None  # default: SQLite under state_dir; postgresql+psycopg://... for a shared one
    scrape_interval_s: float = Field(default=1.0, gt=0, le=300)
    evaluation_interval_s: float = Field(default=1.0, gt=0, le=300)
    stale_after_s: float = Field(default=10.0, gt=0, le=3600)  # older values are no evidence
    policy: Literal["propose", "ask", "run"] = "ask"  # what happens with a proposed runbook
    capacity_floor_ratio: float = Field(
        default=0.6, gt=0, le=1
    )  # no action may leave fewer of the wanted nodes serving

    @property
    def base_url(self) -> str:
        return self.url or f"http://{self.host}:{self.port}"


class GatewaySettings(Section):
    host: str = "127.0.0.1"
    port: int = Field(default=7800, ge=0, le=65535)

    @property
    def base_url(self) -> str:
        return f"http://{self.host}:{self.port}"


class FleetSettings(Section):
    """The fleet that `fleetctl up` starts when there is none yet."""

    model_dir: Path | None = None  # default: a small model made under state_dir
    model: str = "demo"  # the name clients ask for
    pool: str = "default"
    nodes: int = Field(default=3, ge=1, le=64)
    ready_timeout_s: float = Field(default=180.0, gt=0, le=3600)
    enable_faults: bool = False  # drills only: nodes accept fault injection
    node_args: list[str] = Field(default_factory=list, max_length=50)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="FLEETCTL_", env_nested_delimiter="__", extra="forbid", frozen=True, env_ignore_empty=True
    )

    state_dir: Path = Field(default_factory=default_state_dir)
    log: LogSettings = LogSettings()
    controller: ControllerSettings = ControllerSettings()
    gateway: GatewaySettings = GatewaySettings()
    fleet: FleetSettings = FleetSettings()
    # Our alerts go to all of these, and silences are theirs: the peers of one cluster. A URL, or a mapping with
    # `url`, credentials and TLS files.
    alertmanagers: list[AlertmanagerPeer] = Field(default_factory=list, max_length=16)
    # Added to every alert that goes out, as Prometheus does; a label that the alert has itself stays.
    external_labels: dict[Annotated[str, Field(pattern=LABEL_NAME)], str] = Field(default_factory=dict, max_length=50)
    webhook: WebhookSettings = WebhookSettings()  # what Alertmanager sends us
    signals: SignalSettings = SignalSettings()  # where the nodes' signals come from

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (env_settings, init_settings)  # what we pass in is the file's content: the environment wins

    def override(self, **changes: dict[str, Any] | Any) -> Settings:
        """These settings with flags laid over them: `override(controller={"port": 1})`. None values are left out."""
        tree = self.model_dump()
        for key, change in changes.items():
            if isinstance(change, dict):
                tree[key] = {**tree[key], **{k: v for k, v in change.items() if v is not None}}
            elif change is not None:
                tree[key] = change
        try:
            return _Plain.model_validate(tree)
        except ValidationError as error:
            raise BadInputError(_explain(error, "flags"), remedy="see fleetctl config show") from error

    @property
    def run_dir(self) -> Path:
        return self.state_dir / "run"

    @property
    def node_token_file(self) -> Path:
        return self.state_dir / "node.token"

    @property
    def controller_token_file(self) -> Path:
        return self.state_dir / "controller.token"

    @property
    def database_url(self) -> str:
        return self.controller.database_url or f"sqlite:///{self.state_dir / 'controller.sqlite'}"

    def controller_token(self) -> str | None:
        """The token for changes: from the settings, else from the file that `fleetctl up` made."""
        if self.controller.token is not None:
            return self.controller.token.get_secret_value()
        return read_token(self.controller_token_file)

    def node_token(self) -> str:
        """The token that nodes want of us. Raises BadInputError when there is none."""
        token = read_token(self.node_token_file)
        if not token:
            raise BadInputError(f"{self.node_token_file}: no node token", remedy="run fleetctl up once: it makes one")
        return token


class _Plain(Settings):
    """Settings from given values alone: flags must win over the environment, which was read before."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return (init_settings,)


def config_candidates() -> list[Path]:
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path("fleetctl.yaml"), config_home / "fleetctl" / "fleetctl.yaml"]


def load_settings(config: Path | None = None) -> Settings:
    """Read the file and the environment. Raises BadInputError naming the file and the key."""
    named = config or (Path(value) if (value := os.environ.get("FLEETCTL_CONFIG")) else None)
    path = named or next((p for p in config_candidates() if p.is_file()), None)
    tree: dict[str, Any] = {}
    if path is not None:
        tree = _read_file(path)
    try:
        return Settings(**tree)
    except ValidationError as error:
        raise BadInputError(
            _explain(error, str(path) if path else "environment"), remedy="see fleetctl config show"
        ) from error


def read_token(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:
        return None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = yaml.safe_load(path.read_text())
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}", remedy="give an existing file to --config") from error
    except yaml.YAMLError as error:
        raise BadInputError(f"{path}: not YAML: {' '.join(str(error).split())}") from error
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise BadInputError(f"{path}: expected a mapping of settings, found {type(tree).__name__}")
    return tree


def _explain(error: ValidationError, source: str) -> str:
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"]) or "settings"
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    return f"{source}: {place}: {first['msg']}{more}"
