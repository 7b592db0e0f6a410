"""What `-o jsonpath=` asks for: a path of RFC 9535, or as kubectl writes one (`{[*].name}`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fleetctl.kit.errors import BadInputError


def parse_path(text: str) -> Callable[[Any], list[Any]]:
    """The path as a function from data to the values that it finds. Raises BadInputError."""
    import jsonpath

    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    if not path.startswith("$"):
        path = f"${path}" if path.startswith((".", "[")) else f"$.{path}"
    try:
        return jsonpath.compile(path).findall
    except jsonpath.JSONPathError as error:
        said = str(error).partition("\n")[0]
        raise BadInputError(f"-o jsonpath={text[:100]}: {said}", remedy="write it like 'jsonpath=$[*].name'") from error
