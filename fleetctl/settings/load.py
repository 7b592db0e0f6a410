"""Where settings come from: defaults, the file, `FLEETCTL_*` variables and flags, each laid over the ones before.

The file is `--config`, else `$FLEETCTL_CONFIG`, else `./fleetctl.yaml`, else `~/.config/fleetctl/fleetctl.yaml`.
A nested value's variable joins names with two underscores: `FLEETCTL_CONTROLLER__PORT=7701`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import ValidationError
from pydantic_settings import EnvSettingsSource
from pydantic_settings.exceptions import SettingsError

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.yaml_keys import REMEDY, read_document
from fleetctl.settings.tree import Settings

FLAG = "flag"
_PREFIX = "FLEETCTL_"


class _Layer(NamedTuple):
    tree: Mapping[str, Any]
    origin: str  # "" for variables: each has its own name


def config_candidates() -> list[Path]:
    """The files that are read when none is named: the first one that exists."""
    config_home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return [Path("fleetctl.yaml"), config_home / "fleetctl" / "fleetctl.yaml"]


def load_settings(config: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """The settings in force. A flag that is None was not given.

    Raises BadInputError naming the file, variable or flag and the key.
    """
    named = config or (Path(value) if (value := os.environ.get("FLEETCTL_CONFIG")) else None)
    path = named or next((p for p in config_candidates() if p.is_file()), None)
    layers = [_Layer(_read_file(path), str(path))] if path is not None else []
    layers += [_Layer(_read_environment(), ""), _Layer(_given(flags or {}), FLAG)]
    return _settings_from(layers, {})


def with_flags(settings: Settings, **flags: Any) -> Settings:
    """These settings with flags laid over them: `with_flags(settings, controller={"port": 1})`. None is not given.

    Raises BadInputError naming the key.
    """
    return _settings_from([_Layer(settings.model_dump(), "settings"), _Layer(_given(flags), FLAG)], settings._origins)


def variable_of(key: str) -> str:
    """The environment variable of a dotted key."""
    return f"{_PREFIX}{key.replace('.', '__').upper()}"


def _settings_from(layers: list[_Layer], origins: Mapping[str, str]) -> Settings:
    tree: dict[str, Any] = {}
    found = dict(origins)
    for layer in layers:
        tree = _merged(tree, layer.tree)
        if layer.origin != "settings":
            found |= {key: layer.origin or variable_of(key) for key in _leaves(layer.tree)}
    try:
        settings = Settings(**tree)
    except ValidationError as error:
        raise BadInputError(_explained(error, found), remedy=_remedy(error)) from error
    settings._origins = found
    return settings


def _merged(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    both = dict(under)
    for key, value in over.items():
        below = both.get(key)
        both[key] = _merged(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return both


def _leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"


def _given(flags: Mapping[str, Any]) -> dict[str, Any]:
    plain = {key: _given(value) if isinstance(value, Mapping) else value for key, value in flags.items()}
    return {key: value for key, value in plain.items() if value is not None and value != {}}


def _read_environment() -> dict[str, Any]:
    for name in os.environ:
        first, joined, _ = name.removeprefix(_PREFIX).partition("__")
        if name.startswith(_PREFIX) and joined and first.lower() not in Settings.model_fields:
            raise BadInputError(f"{name}: there is no such setting", remedy="fleetctl config explain")
    try:
        return EnvSettingsSource(Settings)()
    except SettingsError as error:
        name = getattr(error.__cause__, "doc", "")
        raise BadInputError(
            f"environment: {error}" + (f": {name[:100]!r} is not JSON" if name else ""),
            remedy='lists and mappings are JSON there, e.g. ["a", "b"]',
        ) from error


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree, keys = read_document(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}", remedy="give an existing file to --config") from error
    except UnicodeDecodeError as error:
        raise BadInputError(f"{path}: not UTF-8 (at byte {error.start})") from error
    except yaml.YAMLError as error:
        told = " ".join(str(error).replace('in "<unicode string>", line', "in line").split())
        raise BadInputError(f"{path}: not YAML: {told}") from error
    if keys.twice:  # of two sections of one name the first would count for nothing
        raise BadInputError(f"{path}:{keys.twice[0].line}: {keys.twice[0]}", remedy=REMEDY)
    if tree is None:
        return {}
    if not isinstance(tree, dict):
        raise BadInputError(f"{path}: expected a mapping of settings, found {type(tree).__name__}")
    if isinstance(folders := tree.get("content"), list):
        # Beside the file that names them, wherever a command is typed.
        tree["content"] = [path.parent / Path(one).expanduser() if isinstance(one, str) else one for one in folders]
    _find_target_files(tree, path.parent)
    return tree


def _find_target_files(tree: dict[str, Any], folder: Path) -> None:
    """Files of targets lie beside the settings file that names them, too."""
    fleet = tree.get("fleet")
    groups = fleet.get("targets") if isinstance(fleet, dict) else None
    for group in groups if isinstance(groups, list) else ():
        sources = group.get("file_sd_configs") if isinstance(group, dict) else None
        for source in sources if isinstance(sources, list) else ():
            if isinstance(source, dict) and isinstance(files := source.get("files"), list):
                source["files"] = [
                    str(folder.absolute() / Path(one).expanduser()) if isinstance(one, str) else one for one in files
                ]


_SAYS = {
    "extra_forbidden": "there is no such setting",
    "missing": "missing",
    "tuple_type": "must be a list",
    "model_type": "must be a mapping",
    "dict_type": "must be a mapping",
}
"""In YAML's words, where pydantic has Python's."""


def _explained(error: ValidationError, origins: Mapping[str, str]) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    at, origin = key, ""
    while at and not origin:
        origin, at = origins.get(at, ""), at.rpartition(".")[0]
    # A whole section that is no mapping, or a check over several keys, has no origin of its own.
    origin = origin or next((where for place, where in origins.items() if place.startswith(f"{key}.")), "settings")
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    says = _SAYS.get(first["type"], first["msg"].removeprefix("Value error, "))
    return f"{origin}: {key or 'settings'}: {says}{more}"


def _remedy(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"] if isinstance(part, str))
    if first["type"] == "extra_forbidden":
        key = key.rpartition(".")[0]
    return f"fleetctl config explain {key}".rstrip()
