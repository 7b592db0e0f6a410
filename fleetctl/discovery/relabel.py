"""`relabel_configs`, as Prometheus applies them: rule after rule, each on what the one before left.

Source: Prometheus, model/relabel (documented under "relabel_config" of its configuration).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

from alerts.matcher import compile_go, expand_go
from fleetctl.settings.section import LABEL_NAME
from fleetctl.settings.targets import RelabelRule

Labels = dict[str, str]

_NAME = re.compile(LABEL_NAME)


def relabelled(labels: Mapping[str, str], rules: Iterable[RelabelRule]) -> Labels | None:
    """The labels after all rules; None when a rule drops the target. Raises BadExpressionError for a bad regex."""
    found = {name: value for name, value in labels.items() if value}
    for rule in rules:
        after = _applied(rule, found)
        if after is None:
            return None
        found = after
    return found


def check_rule(rule: RelabelRule) -> None:
    """Raises BadExpressionError when its regex can't be read."""
    compile_go(rule.regex)


def _applied(rule: RelabelRule, labels: Labels) -> Labels | None:
    value = rule.separator.join(labels.get(name, "") for name in rule.source_labels)
    pattern = compile_go(rule.regex)
    match rule.action:
        case "keep" | "drop":
            return labels if (pattern.fullmatch(value) is not None) == (rule.action == "keep") else None
        case "keepequal" | "dropequal":
            return labels if (labels.get(rule.target_label, "") == value) == (rule.action == "keepequal") else None
        case "labeldrop" | "labelkeep":
            keeps = rule.action == "labelkeep"
            return {name: one for name, one in labels.items() if (pattern.fullmatch(name) is not None) == keeps}
        case "labelmap":
            found = dict(labels)
            for name, one in sorted(labels.items()):
                if matched := pattern.fullmatch(name):
                    _set(found, expand_go(rule.replacement, matched), one)
            return found
        case "lowercase" | "uppercase":
            return _with(labels, rule.target_label, value.lower() if rule.action == "lowercase" else value.upper())
        case "hashmod":
            return _with(labels, rule.target_label, str(_hash(value) % rule.modulus))
        case _:
            matched = pattern.fullmatch(value)
            if matched is None:
                return labels
            return _with(labels, expand_go(rule.target_label, matched), expand_go(rule.replacement, matched))


def _with(labels: Labels, name: str, value: str) -> Labels:
    found = dict(labels)
    _set(found, name, value)
    return found


def _set(labels: Labels, name: str, value: str) -> None:
    """An empty value removes the label; a name that is none is passed over, as Prometheus does."""
    if not _NAME.fullmatch(name):
        return
    if value:
        labels[name] = value
    else:
        labels.pop(name, None)


@lru_cache(maxsize=8192)
def _hash(value: str) -> int:
    """The last 8 bytes of the MD5, as Prometheus has it: no secret hangs on it."""
    return int.from_bytes(hashlib.md5(value.encode(), usedforsecurity=False).digest()[8:], "big")
