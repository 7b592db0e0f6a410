"""What the engines emit: a metric's name to its type and unit, or why there is no such metric."""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, cast

import yaml

from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files

CATALOG_FILE = Path(__file__).parents[1] / "metrics_catalog.yaml"

Type = Literal["gauge", "counter", "plain_counter", "monotone_gauge", "last_code", "histogram", "summary"]
Part = Literal["value", "bucket", "rated_bucket", "sum", "count"]

_ESCAPED = {"vllm_": "vllm:", "sglang_": "sglang:"}
_UNIT_OF_SIGNAL = (("_ratio", "ratio"), ("_seconds", "seconds"), ("_bytes", "bytes"), ("_celsius", "celsius"))
_RATED_BUCKET = ":bucket_rate"  # recorded rates of a histogram's buckets: `le` is there, and no rate() is needed


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample name. `part` says which series of a histogram it is; `unit` "" when it has none."""

    family: str
    type: Type
    unit: str
    part: Part = "value"
    removed_in: str | None = None
    instead: str | None = None
    is_escaped: bool = False  # vllm_x: only there after OpenMetrics escaping
    is_off_by_default: bool = False

    @property
    def is_counter(self) -> bool:
        """Does it count up since the process started."""
        return self.type in ("counter", "plain_counter") or self.part in ("bucket", "sum", "count")


@dataclass(frozen=True, slots=True)
class Missing:
    """No version of this engine emits the name; `closest` is what may have been meant."""

    engine: str
    versions: str
    closest: str | None


class Catalog:
    def __init__(self, raw: dict[str, Any], signals: frozenset[str]) -> None:
        self._metrics: dict[str, Metric] = {}
        self._complete: dict[str, tuple[str, str]] = {}
        self._signals = signals
        self.labels: dict[str, dict[str, str]] = raw["labels"]
        self.read_by_node = frozenset(raw["read_by_node"])
        off = set(raw["off_by_default"])
        for prefix, namespace in raw["namespaces"].items():
            if namespace["complete"]:
                self._complete[prefix] = (namespace["engine"], str(namespace["versions"]))
            for name, described in namespace["families"].items():
                self._add(prefix + name, described, off=off)
        for family, gone in raw["removed"].items():
            self._add(family, gone["type"], removed_in=gone["removed"], instead=gone.get("use"))

    def find(self, name: str) -> Metric | Missing | None:
        """What the name is; Missing when it should be here and is not; None when we do not judge it."""
        found = self._metrics.get(name)
        if found is not None:
            return found
        for escaped, plain in _ESCAPED.items():
            if name.startswith(escaped):
                inner = self.find(plain + name.removeprefix(escaped))
                if isinstance(inner, Metric):
                    return Metric(
                        inner.family,
                        inner.type,
                        inner.unit,
                        inner.part,
                        inner.removed_in,
                        inner.instead,
                        is_escaped=True,
                    )
                return inner
        if name.startswith("llm:"):
            if name not in self._signals:
                return Missing("our signals", "this version", self._closest(name, self._signals))
            part: Part = "rated_bucket" if name.endswith(_RATED_BUCKET) else "value"
            return Metric(name, "gauge", _signal_unit(name), part)
        for prefix, (engine, versions) in self._complete.items():
            if name.startswith(prefix):
                names = [n for n, m in self._metrics.items() if m.removed_in is None and n.startswith(prefix)]
                return Missing(engine, versions, self._closest(name, names))
        return None

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        """Known names that a regular expression for the name matches."""
        return [name for name in (*self._metrics, *self._signals) if pattern.fullmatch(name)]

    def _closest(self, name: str, names: Any) -> str | None:
        total = f"{name}_total"
        if total in names:
            return total
        bare = name.removesuffix("_total")
        if bare != name and bare in names:
            return bare
        return next(iter(get_close_matches(name, names, n=1, cutoff=0.85)), None)

    def _add(
        self, family: str, described: str, *, off: set[str] | None = None, removed_in: str | None = None,
        instead: str | None = None,
    ) -> None:  # fmt: skip
        word, _, unit = described.partition(" ")
        kind = cast(Type, word)
        names: dict[str, Part]
        if kind == "counter":
            names = {f"{family}_total": "value"}
        elif kind == "histogram":
            names = {f"{family}_bucket": "bucket", f"{family}_sum": "sum", f"{family}_count": "count"}
        elif kind == "summary":
            names = {family: "value", f"{family}_sum": "sum", f"{family}_count": "count"}
        else:
            names = {family: "value"}
        for name, part in names.items():
            self._metrics[name] = Metric(
                family,
                kind,
                unit,
                part,
                removed_in,
                instead,
                is_off_by_default=name in (off or ()),
            )


def _signal_unit(name: str) -> str:
    bare = name.split(":")[1]
    if ":ratio_rate" in name:
        return "ratio"
    if name.endswith((":rate", ":increase", ":increase1h", ":changes")):
        return ""
    return next((unit for suffix, unit in _UNIT_OF_SIGNAL if bare.endswith(suffix)), "")


@lru_cache(maxsize=1)
def builtin_catalog() -> Catalog:
    """The catalogue that comes with the package. Raises BadRuleError when a file of ours is broken."""
    groups = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])
    recorded = frozenset(rule.name for group in groups for rule in group.rules if rule.kind == "record")
    return Catalog(yaml.safe_load(CATALOG_FILE.read_text(encoding="utf-8")), recorded)
