"""A YAML file as Prometheus reads it: scalars stay text, keys are unique, merge keys (`<<: *other`) work."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from alerts.errors import BadRuleError
from alerts.yaml_keys import REMEDY, read_keys

if TYPE_CHECKING:
    from pydantic import ValidationError

MAX_FILE_BYTES = 4 * 1024 * 1024

_PACKAGE = Path(__file__).parents[1]
_NULL, _MERGE = "tag:yaml.org,2002:null", "tag:yaml.org,2002:merge"
_REASONS = {
    "extra_forbidden": "unknown key",
    "missing": "missing",
    "string_type": "wanted text; put it in quotes",
    "dict_type": "wanted a mapping",
    "model_type": "wanted a mapping",
    "list_type": "wanted a list",
    "int_type": "wanted a whole number",
    "int_parsing": "wanted a whole number",
    "float_parsing": "wanted a number",
    "bool_parsing": "wanted true or false",
    "string_too_short": "empty",
}


class YamlFile(NamedTuple):
    """`root` knows the lines of `content`; None for a file without content."""

    content: Any
    root: yaml.Node | None


class _Loader(yaml.SafeLoader):
    """Keeps `1.50`, `true` and dates as the text they are: that is what labels and durations want."""

    yaml_implicit_resolvers = {  # noqa: RUF012  as PyYAML has it
        first: [(tag, pattern) for tag, pattern in resolvers if tag in (_NULL, _MERGE)]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


def shown_path(path: Path) -> str:
    """A path as an error names it: of our own files from the package on, of others as given."""
    try:
        return str(path.resolve().relative_to(_PACKAGE))
    except ValueError:
        return str(path)


def read_yaml(path: Path) -> YamlFile:
    """The file's content; every scalar but null is text. Raises BadRuleError: file, line where there is one, reason."""
    name = shown_path(path)
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise BadRuleError(f"{name}: larger than {MAX_FILE_BYTES // 1024**2} MiB; split it into several files")
        loader = _Loader(path.read_bytes())
        try:
            root = loader.get_single_node()
            if root is None:
                return YamlFile(None, None)
            if twice := read_keys(root).twice:
                raise BadRuleError(f"{name}, line {twice[0].line}: {twice[0]}; {REMEDY}")
            return YamlFile(loader.construct_document(root), root)
        finally:
            loader.dispose()
    except OSError as error:
        raise BadRuleError(f"{name}: cannot be read: {error.strerror or error}") from None
    except yaml.YAMLError as error:
        raise BadRuleError(_told(name, error)) from None
    except (UnicodeDecodeError, ValueError) as error:
        raise BadRuleError(f"{name}: cannot be read: {' '.join(str(error).split())}") from None
    except RecursionError:
        raise BadRuleError(f"{name}: nested too deeply") from None


def reason_of(error: ValidationError) -> str:
    """The first problem in one line: where in the content, and what is wrong there, without pydantic's terms."""
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    reason = "empty" if first["input"] is None else _REASONS.get(first["type"], first["msg"])
    return f"{path}: {reason}" if path else reason


def _told(name: str, error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.reader.ReaderError):
        return f"{name}: cannot be read as YAML: {error.reason} (at byte {error.position})"
    mark = getattr(error, "problem_mark", None)
    problem = " ".join(str(getattr(error, "problem", None) or error).split())
    if problem == "but found another document":
        problem = "a second document, which Prometheus would ignore; join them under one `groups`"
    elif "'\\t'" in problem:
        problem += "; indent with spaces"
    return f"{name}{f', line {mark.line + 1}' if mark else ''}: {problem}"
