"""`{{name}}` in titles, commands and expectations: what is used, and strict replacement.

A command is split into words before values go in, so that a value is never more than one word or part of one.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from runbooks.errors import BadInputError

_PLACE = re.compile(r"\{\{\s*([a-z][a-z0-9_]*)\s*\}\}")


def places(template: str) -> list[str]:
    """Names used, in order. Raises BadInputError when braces are left over."""
    rest = _PLACE.sub("", template)
    if "{{" in rest or "}}" in rest:
        raise BadInputError(f"broken placeholder in {template!r}", remedy="write {{name}} with a-z, 0-9 and _")
    return [match[1] for match in _PLACE.finditer(template)]


def fill(template: str, values: Mapping[str, str]) -> str:
    """`template` with every `{{name}}` replaced. Raises BadInputError for a name without a value.

    Values are replaced once: braces inside a value stay as they are.
    """
    missing = [name for name in places(template) if name not in values]
    if missing:
        raise BadInputError(
            f"no input {missing[0]!r}", remedy=f"define it under inputs, or remove {{{{{missing[0]}}}}}"
        )
    return _PLACE.sub(lambda match: values[match[1]], template)


def fill_command(template: str, values: Mapping[str, str]) -> str:
    """A command template with its values, one word each however they look. Raises BadInputError."""
    tight = _PLACE.sub(lambda match: f"{{{{{match[1]}}}}}", template)
    try:
        words = shlex.split(tight)
    except ValueError as error:
        raise BadInputError(f"{template!r}: {error}", remedy="close the quote or remove the backslash") from None
    return shlex.join(fill(word, values) for word in words)


def unquoted_places(expression: str) -> list[str]:
    """Names used outside a double-quoted string of a PromQL expression."""
    return [match[1] for match in _PLACE.finditer(expression) if expression.count('"', 0, match.start()) % 2 == 0]
