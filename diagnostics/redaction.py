"""What must not leave with an incident's file or page: credentials that somebody typed or a message repeated.

Prompts and answers are in no series, event or receipt to begin with; this is for the secret in a comment, a step's
command or an error's text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"
_SECRETS = (
    re.compile(r"(?i)\b(bearer|basic)\s+[a-z0-9._~+/=-]{8,}"),
    re.compile(r"\b(?:flt|sk|rk|ghp|gho|glpat|xox[abp]|hf|AKIA|ASIA)[-_]?[A-Za-z0-9_-]{12,}"),
    re.compile(
        r"(?i)\b(password|passwd|secret|token|api[_-]?key|authorization)\b(\s*[=:]\s*)(?!\[redacted\])[^\s,;\"']{4,}"
    ),
    re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s/@:]*:[^\s/@]+@"),
    re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"),
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)", re.DOTALL),
)


def redacted(text: str) -> str:
    """The text without what looks like a credential; what it was called stays."""
    bearer, prefixed, named, in_url, jwt, key = _SECRETS
    text = key.sub(REDACTED, jwt.sub(REDACTED, text))
    text = in_url.sub(lambda m: f"{m[0].partition('://')[0]}://{REDACTED}@", text)
    text = bearer.sub(lambda m: f"{m[1]} {REDACTED}", text)
    text = prefixed.sub(REDACTED, text)
    return named.sub(lambda m: f"{m[1]}{m[2]}{REDACTED}", text)


def redacted_tree(value: Any) -> Any:
    """Mappings and lists with each text in them `redacted`; keys stay."""
    match value:
        case str():
            return redacted(value)
        case Mapping():
            return {key: redacted_tree(one) for key, one in value.items()}
        case list() | tuple():
            return [redacted_tree(one) for one in value]
        case _:
            return value
