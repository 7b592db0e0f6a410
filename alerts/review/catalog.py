"""The metrics catalog: what each engine emits, by name, type and unit, or why there is no such metric."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from alerts.errors import BadCatalogError, BadRuleError
from alerts.evaluation.builtin import builtin_rule_files, builtin_signal_files
from alerts.evaluation.rules import load_rule_files
from alerts.evaluation.yaml_file import read_yaml, reason_of, shown_path
from alerts.matcher import GoPattern
from alerts.native_name import native_name

CATALOG_FILE = Path(__file__).parents[1] / "metrics_catalog.yaml"

Type = Literal["gauge", "counter", "plain_counter", "monotone_gauge", "last_code", "histogram", "summary"]
Part = Literal["value", "bucket", "rated_bucket", "sum", "count"]

_UNIT_OF_SIGNAL = (("_ratio", "ratio"), ("_seconds", "seconds"), ("_bytes", "bytes"), ("_celsius", "celsius"))
_RATED_BUCKET = ":bucket_rate"  # recorded rates of a histogram's buckets: `le` is there, and no rate() is needed
_SIMILAR = 0.85  # difflib's ratio from which on a name is taken for a misspelling


@dataclass(frozen=True, slots=True)
class Metric:
    """One sample name. `part`: which series of a histogram it is; `unit` "" when it has none."""

    family: str
    type: Type
    unit: str
    part: Part = "value"
    removed_in: str | None = None
    instead: str | None = None
    is_escaped: bool = False  # vllm_x, ray_vllm_x: another spelling of a native name
    is_off_by_default: bool = False

    @property
    def is_counter(self) -> bool:
        """True when it counts up since the process started."""
        return self.type in ("counter", "plain_counter") or self.part in ("bucket", "sum", "count")


@dataclass(frozen=True, slots=True)
class Missing:
    """No version of this program emits the name; `closest` is what may have been meant."""

    program: str
    versions: str
    closest: str | None


class _Edge(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _described(value: object) -> object:
    """`histogram seconds` as its two words."""
    if not isinstance(value, str):
        return value
    word, _, unit = value.partition(" ")
    return {"type": word, "unit": unit}


class _FamilyEdge(_Edge):
    type: Type
    unit: str = ""


_Family = Annotated[_FamilyEdge, BeforeValidator(_described)]


class _NamespaceEdge(_Edge):
    engine: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    program: str | None = None
    versions: str
    source: str = Field(min_length=1)
    complete: bool = False
    unprefixed: bool = False
    families: dict[str, _Family]


class _RemovedEdge(_Edge):
    type: _Family
    removed: str
    use: str | None = None


class _CatalogEdge(_Edge):
    namespaces: dict[str, _NamespaceEdge]
    also_emits: dict[str, list[str]] = Field(default_factory=dict)
    removed: dict[str, _RemovedEdge] = Field(default_factory=dict)
    labels: dict[str, dict[str, str]] = Field(default_factory=dict)
    off_by_default: list[str] = Field(default_factory=list)


class Catalog:
    """Metrics by sample name (`x_total`, `x_bucket`), and who emits them."""

    def __init__(self, files: Iterable[_CatalogEdge], signals: frozenset[str]) -> None:
        """`signals`: names of the `llm:` series that our own rules record."""
        self._metrics: dict[str, Metric] = {}
        self._emitters: dict[str, set[str]] = {}
        self._complete: dict[str, tuple[str, str]] = {}
        self._signals = signals
        self.engines: dict[str, str] = {}
        """Engines in the order of the file, and the name of each one's program."""
        self.labels: dict[str, dict[str, str]] = {}
        """Of a metric: labels that people expect and what they are called."""
        for file in files:
            self._add_file(file)

    def find(self, name: str) -> Metric | Missing | None:
        """What the name is; Missing when it should be here and is not; None when we do not judge it."""
        found = self._metrics.get(name)
        if found is not None:
            return found
        if native_name(name) != name:
            inner = self.find(native_name(name))
            return replace(inner, is_escaped=True) if isinstance(inner, Metric) else inner
        if name.startswith("llm:"):
            if name not in self._signals:
                return Missing("our signals", "this version", self._closest(name, self._signals))
            part: Part = "rated_bucket" if name.endswith(_RATED_BUCKET) else "value"
            return Metric(name, "gauge", _signal_unit(name), part)
        for prefix, (program, versions) in self._complete.items():
            if name.startswith(prefix):
                names = [n for n, m in self._metrics.items() if m.removed_in is None and n.startswith(prefix)]
                return Missing(program, versions, self._closest(name, names))
        return None

    def matching(self, pattern: GoPattern) -> list[str]:
        """Known names that a regular expression for the name matches."""
        return [name for name in (*self._metrics, *self._signals) if pattern.fullmatch(name)]

    def emitters(self, name: str) -> frozenset[str]:
        """Engines of which some version emits the name, in whatever spelling."""
        return frozenset(self._emitters.get(native_name(name), ()))

    def emitted_by(self, engines: Collection[str]) -> list[str]:
        """All names that one of these engines emits."""
        return [name for name, emitters in self._emitters.items() if not emitters.isdisjoint(engines)]

    def closest_of(self, name: str, engines: Collection[str]) -> str | None:
        """The name of one of these engines that may have been meant."""
        return self._closest(name, self.emitted_by(engines))

    def _closest(self, name: str, names: Collection[str]) -> str | None:
        total = f"{name}_total"
        if total in names:
            return total
        bare = name.removesuffix("_total")
        if bare != name and bare in names:
            return bare
        return next(iter(get_close_matches(name, names, n=1, cutoff=_SIMILAR)), None)

    def _add_file(self, file: _CatalogEdge) -> None:
        for prefix, namespace in file.namespaces.items():
            program = namespace.program or namespace.engine
            self.engines.setdefault(namespace.engine, program)
            if namespace.complete:
                self._complete[prefix] = (program, namespace.versions)
            for name, family in namespace.families.items():
                for sample in self._add_family(prefix + name, family, namespace.engine):
                    if namespace.unprefixed:
                        self._emitters.setdefault(sample.removeprefix(prefix), set()).add(namespace.engine)
        for name, gone in file.removed.items():
            engine = next((each.engine for prefix, each in file.namespaces.items() if name.startswith(prefix)), None)
            self._add_family(name, gone.type, engine, removed_in=gone.removed, instead=gone.use)
        for engine, names in file.also_emits.items():
            self.engines.setdefault(engine, engine)
            for name in names:
                samples = [sample for sample, metric in self._metrics.items() if name in (sample, metric.family)]
                for sample in samples or [name]:
                    self._emitters.setdefault(sample, set()).add(engine)
        for name in file.off_by_default:
            if name in self._metrics:
                self._metrics[name] = replace(self._metrics[name], is_off_by_default=True)
        self.labels.update(file.labels)

    def _add_family(
        self,
        name: str,
        family: _FamilyEdge,
        engine: str | None,
        *,
        removed_in: str | None = None,
        instead: str | None = None,
    ) -> list[str]:
        """The names of the family's samples."""
        samples: dict[str, Part]
        if family.type == "counter":
            samples = {name + ("_TOTAL" if name.isupper() else "_total"): "value"}
        elif family.type == "histogram":
            samples = {f"{name}_bucket": "bucket", f"{name}_sum": "sum", f"{name}_count": "count"}
        elif family.type == "summary":
            samples = {name: "value", f"{name}_sum": "sum", f"{name}_count": "count"}
        else:
            samples = {name: "value"}
        for sample, part in samples.items():
            self._metrics[sample] = Metric(name, family.type, family.unit, part, removed_in, instead)
            if engine is not None:
                self._emitters.setdefault(sample, set()).add(engine)
        return list(samples)


def _signal_unit(name: str) -> str:
    bare = name.split(":")[1]
    if ":ratio_rate" in name:
        return "ratio"
    if name.endswith((":rate", ":increase", ":increase1h", ":changes")):
        return ""
    return next((unit for suffix, unit in _UNIT_OF_SIGNAL if bare.endswith(suffix)), "")


def load_catalog(added: Sequence[Path] = ()) -> Catalog:
    """The catalog of the package, and what these files add. Raises BadCatalogError naming file and place."""
    return _load_catalog(tuple((path, path.stat().st_mtime_ns) for path in added))


def builtin_catalog() -> Catalog:
    """The catalog that comes with the package. Raises BadRuleError when a file of ours is broken."""
    return load_catalog()


@lru_cache(maxsize=8)
def _load_catalog(added: tuple[tuple[Path, int], ...]) -> Catalog:
    """`added` with the time of each one's last change: an edited file is read again."""
    groups = load_rule_files([*builtin_signal_files(), *builtin_rule_files()])
    recorded = frozenset(rule.name for group in groups for rule in group.rules if rule.kind == "record")
    return Catalog([_read_catalog(path) for path in (CATALOG_FILE, *(path for path, _ in added))], recorded)


def _read_catalog(path: Path) -> _CatalogEdge:
    try:
        return _CatalogEdge.model_validate(read_yaml(path).content)
    except BadRuleError as error:
        raise BadCatalogError(str(error)) from None
    except ValidationError as error:
        raise BadCatalogError(f"{shown_path(path)}: {reason_of(error)}") from None
