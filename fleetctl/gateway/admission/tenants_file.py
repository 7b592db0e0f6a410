"""The tenants file: who may use the fleet. Read with the lines of what is wrong in it; keys are added to its text.

```yaml
tenants:
  shop:
    class: critical
    models: [llama-*]
    limits: {output_tokens_per_min: 60000, concurrency: 32}
    keys:
      - {sha256: "9f86...", made: 2026-11-22, note: checkout}
```
"""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fleetctl.gateway.admission.tenant import ANONYMOUS, Tenant, TenantBook, TenantLimits
from fleetctl.kit.api_key import digest_of, new_key, shown_id
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.whole_file import write_whole
from fleetctl.kit.yaml_keys import YamlKeys, dotted, read_document
from fleetctl.priority_class import PriorityClass

KEY_PREFIX = "flk-"
MAX_FILE_BYTES = 8 * 1024 * 1024
MAX_TENANTS = 10_000
NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
RESERVED = (ANONYMOUS, "other")  # labels of metrics that mean something else
REMEDY = "mend it; `fleetctl gateway tenants check FILE` says when it is right"

Rate = Annotated[int, Field(gt=0, le=10**12)]
_REASONS = {"extra_forbidden": "there is no such key", "missing": "missing"}


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(_Section):
    input_tokens_per_min: Rate | None = None
    output_tokens_per_min: Rate | None = None
    requests_per_min: Rate | None = None
    concurrency: Annotated[int, Field(gt=0, le=10**6)] | None = None
    max_output_tokens: Annotated[int, Field(gt=0, le=10**9)] | None = None
    burst_s: Annotated[float, Field(gt=0, le=3600)] = 60.0


class _Key(_Section):
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    made: dt.date | None = None
    note: Annotated[str, Field(max_length=200)] = ""


class _Tenant(_Section):
    priority: PriorityClass | None = Field(default=None, alias="class")
    weight: Annotated[float, Field(gt=0, le=1000)] = 1.0
    models: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(default_factory=list, max_length=1000)
    limits: _Limits | None = None
    keys: list[_Key] | None = Field(default=None, max_length=1000)


class _Defaults(_Section):
    priority: PriorityClass = Field(default=PriorityClass.STANDARD, alias="class")
    limits: _Limits = Field(default_factory=_Limits)


class _File(_Section):
    version: Literal[1] = 1
    defaults: _Defaults = Field(default_factory=_Defaults)
    tenants: Annotated[dict[str, _Tenant | None], Field(max_length=MAX_TENANTS)] | None


class KeyRow(BaseModel):
    """One key as people see it: never the key itself."""

    tenant: str
    id: str
    made: str
    note: str


def read_tenants(path: Path) -> TenantBook:
    """The file's tenants. Raises BadInputError naming file, line and remedy."""
    return _book_of(*_read(path), path)


def list_keys(path: Path) -> list[KeyRow]:
    """The file's keys, by tenant. Raises BadInputError."""
    file, _ = _read(path)
    return [
        KeyRow(
            tenant=name,
            id=shown_id(bytes.fromhex(key.sha256)),
            made="" if key.made is None else key.made.isoformat(),
            note=key.note,
        )
        for name, tenant in (file.tenants or {}).items()
        for key in (tenant.keys if tenant and tenant.keys else ())
    ]


def add_key(path: Path, tenant: str, *, note: str, made: dt.date) -> str:
    """Make a key for the tenant and write its hash into the file; returns the key, which is kept nowhere.

    The rest of the file, comments included, stays as it is. A tenant, or a file, that is not there is made.
    Raises BadInputError naming what can't be written.
    """
    if not re.fullmatch(NAME, tenant) or tenant in RESERVED:
        raise BadInputError(
            f"{tenant[:80]!r} is not a tenant's name",
            remedy=f"use a-z, 0-9 and . _ - (at most 63), and neither of {', '.join(RESERVED)}",
        )
    key = new_key(KEY_PREFIX)
    fields = {"sha256": digest_of(key.encode()).hex(), "made": made.isoformat()} | ({"note": note} if note else {})
    row = "- {" + ", ".join(f"{name}: {json.dumps(value)}" for name, value in fields.items()) + "}"
    try:
        if path.exists():
            read_tenants(path)
        text = path.read_text("utf-8") if path.exists() else "tenants:\n"
        changed = _with_row(text, tenant, row.replace(f'"{made.isoformat()}"', made.isoformat()), path)
        _book_of(*_parsed(changed, path), path)
        write_whole(path, changed)
    except OSError as error:
        raise BadInputError(f"{path}: {error.strerror or error}", remedy="make the file writable") from error
    return key


def read_node_key(path: Path | None) -> str | None:
    """The key that nodes want: the first of a file in the form of their --api-key-file; None without a file.

    Raises BadInputError when the file has none.
    """
    if path is None:
        return None
    try:
        lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(f"{path}: {reason}", remedy="fleetctl config explain gateway.node_key_file") from error
    key = next((line for line in lines if line and not line.startswith("#")), "")
    if not key or not key.isascii() or not key.isprintable():
        raise BadInputError(f"{path}: no key in it", remedy="put one of the nodes' API keys into its first line")
    return key


def _read(path: Path) -> tuple[_File, YamlKeys]:
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadInputError(f"{path}: larger than {MAX_FILE_BYTES // 1024**2} MiB", remedy=REMEDY)
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadInputError(
            f"{path}: {reason}", remedy="make it a file that can be read, or mend the setting"
        ) from error
    return _parsed(text, path)


def _parsed(text: str, path: Path) -> tuple[_File, YamlKeys]:
    """The file, and the line of each key and list entry by its path."""
    try:
        document, keys = read_document(text, yaml.CSafeLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f":{mark.line + 1}" if mark is not None else ""
        reason = " ".join(str(getattr(error, "problem", None) or error).split())
        raise BadInputError(f"{path}{at}: not YAML: {reason}", remedy=REMEDY) from error
    if keys.twice:
        raise BadInputError(f"{path}:{keys.twice[0].line}: {keys.twice[0]}", remedy=REMEDY)
    try:
        return _File.model_validate(document), keys
    except ValidationError as error:
        first = error.errors()[0]
        place = tuple(part for part in first["loc"])
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        reason = _REASONS.get(first["type"], first["msg"])
        raise BadInputError(
            f"{path}:{keys.line_of(*place) or 1}: {dotted(place) or 'file'}: {reason}{more}", remedy=REMEDY
        ) from error


def _book_of(file: _File, keys: YamlKeys, path: Path) -> TenantBook:
    tenants: dict[str, Tenant] = {}
    names_by_digest: dict[bytes, str] = {}
    for name, given in (file.tenants or {}).items():
        if not re.fullmatch(NAME, name) or name in RESERVED:
            line = keys.line_of("tenants", name)
            raise BadInputError(
                f"{path}:{line}: tenants.{name[:80]}: no name for a tenant: use a-z, 0-9 and . _ - (at most 63), and "
                f"neither of {', '.join(RESERVED)}",
                remedy=REMEDY,
            )
        one = given or _Tenant()
        limits = file.defaults.limits.model_dump()
        if one.limits is not None:
            limits |= one.limits.model_dump(exclude_unset=True)
        tenants[name] = Tenant(
            name=name,
            priority=one.priority or file.defaults.priority,
            weight=one.weight,
            models=tuple(one.models),
            limits=TenantLimits(**limits),
        )
        for number, key in enumerate(one.keys or ()):
            digest = bytes.fromhex(key.sha256)
            if digest in names_by_digest:
                line = keys.line_of("tenants", name, "keys", number)
                raise BadInputError(
                    f"{path}:{line}: tenants.{name}.keys[{number}]: tenant {names_by_digest[digest]} has this key",
                    remedy=REMEDY,
                )
            names_by_digest[digest] = name
    return TenantBook(tenants, names_by_digest)


def _with_row(text: str, tenant: str, row: str, path: Path) -> str:
    """The text with one more entry in the tenant's list of keys. Raises BadInputError for a form that is not ours."""
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines()
    tenants_key, tenants = _entry(root, "tenants")
    if tenants_key is None or tenants is None:
        raise BadInputError(f"{path}: tenants: missing", remedy=REMEDY)
    key_node, value = _entry(tenants, tenant)
    if key_node is None:
        if isinstance(tenants, yaml.MappingNode) and tenants.flow_style:
            raise _inline(path, tenants_key)
        is_empty = not isinstance(tenants, yaml.MappingNode)
        indent = " " * (2 if is_empty else tenants.value[0][0].start_mark.column)
        at = tenants_key.start_mark.line + 1 if is_empty else _line_after(tenants)
        new = [f"{indent}{tenant}:", f"{indent}  keys:", f"{indent}    {row}"]
        return _joined(lines, at, new)
    assert value is not None
    column = key_node.start_mark.column
    keys_key, keys = _entry(value, "keys")
    if keys_key is None:
        if isinstance(value, yaml.MappingNode) and (
            value.flow_style or value.start_mark.line == key_node.end_mark.line
        ):
            raise _inline(path, key_node)
        is_empty = not isinstance(value, yaml.MappingNode)
        if is_empty and value.value not in ("", None):
            raise _inline(path, key_node)
        indent = " " * (column + 2 if is_empty else value.value[0][0].start_mark.column)
        return _joined(lines, key_node.start_mark.line + 1, [f"{indent}keys:", f"{indent}  {row}"])
    if isinstance(keys, yaml.SequenceNode) and not keys.flow_style and keys.value:
        return _joined(lines, _line_after(keys), [" " * keys.start_mark.column + row])
    if isinstance(keys, yaml.ScalarNode) and keys.value == "":
        return _joined(lines, keys_key.start_mark.line + 1, [" " * (keys_key.start_mark.column + 2) + row])
    raise _inline(path, keys_key)


def _inline(path: Path, node: yaml.Node) -> BadInputError:
    line = node.start_mark.line + 1
    return BadInputError(
        f"{path}:{line}: written on one line, so nothing can be added to it", remedy="write it over several lines"
    )


def _entry(mapping: yaml.Node | None, name: str) -> tuple[yaml.Node | None, yaml.Node | None]:
    if isinstance(mapping, yaml.MappingNode):
        for key, value in mapping.value:
            if key.value == name:
                return key, value
    return None, None


def _line_after(node: yaml.Node) -> int:
    """The index of the line after the node's last one; comments and blank lines below it are not its."""
    if isinstance(node, yaml.MappingNode) and node.value and not node.flow_style:
        return _line_after(node.value[-1][1])
    if isinstance(node, yaml.SequenceNode) and node.value and not node.flow_style:
        return _line_after(node.value[-1])
    ends_before_line = node.end_mark.column == 0 and node.end_mark.line > node.start_mark.line
    end: int = node.end_mark.line
    return end if ends_before_line else end + 1


def _joined(lines: list[str], at: int, new: list[str]) -> str:
    return "\n".join([*lines[:at], *new, *lines[at:]]) + "\n"
