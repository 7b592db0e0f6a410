"""A benchmark case: a fleet, what happens to it and when, and which cause a good diagnosis names. One YAML file each.

The form is documented in docs/diagnosis-benchmark.md. Times in a file are relative to the onset of the fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from alerts.duration import BadDurationError, parse_duration_s

HERE = Path(__file__).parent
JUDGED_AFTER_S = (30.0, 300.0, 900.0, 3600.0)
"""How long after the onset each case is judged."""

ENGINES = ("fleetctl", "vllm", "sglang", "tgi", "trtllm", "llamacpp")
SHAPES = ("step", "ramp", "spike", "sawtooth", "pulse", "freeze", "vanish", "nan", "reset")


class _Loader(yaml.SafeLoader):
    """YAML's words for true and false are those of 1.2: `on` is a key here."""


_Loader.yaml_implicit_resolvers = {
    first: [one for one in resolvers if one[0] != "tag:yaml.org,2002:bool"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:bool", re.compile("^(?:true|false)$"), list("tf"))


class BadCaseError(Exception):
    """A case file that cannot be used: names the file, the field and what to write instead."""


def _seconds(value: Any) -> Any:
    """Seconds of `90`, `"90s"`, `"-2m"`."""
    if isinstance(value, str):
        sign = -1.0 if value.startswith("-") else 1.0
        try:
            return sign * parse_duration_s(value.lstrip("+-"), typed=True)
        except BadDurationError as error:
            raise ValueError(str(error)) from None
    return value


def _words(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Seconds = Annotated[float, BeforeValidator(_seconds)]
Words = Annotated[tuple[str, ...], BeforeValidator(_words)]


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class NodeForm(_Form):
    """One node. `engine` is its kind, as the target's label says it."""

    name: str
    pool: str = "chat"
    model: str = "llama-8b"
    zone: str = "a"
    revision: str = "v1"
    engine: Literal["fleetctl", "vllm", "sglang", "tgi", "trtllm", "llamacpp"] = "vllm"


class SeriesForm(_Form):
    """A native series whose healthy level the case states itself: one of gauge, rate (a counter), histogram."""

    name: str
    on: Words = ("all",)
    labels: dict[str, str] = Field(default_factory=dict)
    gauge: float | None = None
    rate: float | None = None
    histogram: dict[str, float] | None = None  # rate, mean, sigma (of the logarithm)
    bounds: tuple[float, ...] | None = None
    noise: float = 0.0  # of a gauge, relative

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        if sum(one is not None for one in (self.gauge, self.rate, self.histogram)) != 1:
            raise ValueError("give one of `gauge`, `rate` (of a counter, per second), `histogram: {rate, mean, sigma}`")
        return self


class ChangeForm(_Form):
    """Something that happens: to a quantity of the serving model, to a native series, or to the scrape (`up`)."""

    what: str
    on: Words = ("all",)
    labels: dict[str, str] = Field(default_factory=dict)  # of a native series, when the name alone says too little
    part: Literal["value", "rate", "mean", "sigma"] = "value"  # of a histogram; value is its mean
    at: Seconds = 0.0
    until: Seconds | None = None
    shape: Literal["step", "ramp", "spike", "sawtooth", "pulse", "freeze", "vanish", "nan", "reset"] = "step"
    over: Seconds = 60.0  # how long a ramp takes; the period of a sawtooth or pulse; the width of a spike
    to: float | None = None
    times: float | None = None
    add: float | None = None

    @model_validator(mode="after")
    def _says_how_much(self) -> Self:
        given = sum(one is not None for one in (self.to, self.times, self.add))
        if self.shape in ("freeze", "vanish", "nan", "reset"):
            if given:
                raise ValueError(f"shape {self.shape} takes none of `to`, `times`, `add`")
        elif given != 1:
            raise ValueError("give one of `to`, `times`, `add`")
        return self


class FactForm(_Form):
    """What the fleet knows of itself. Only a fleet with `controller: true` tells."""

    kind: Literal[
        "process_ended",
        "deploy",
        "restart",
        "scale",
        "limits",
        "reroute",
        "drain",
        "config",
        "node_added",
        "machine_problem",
        "provider_reason",
    ]
    on: Words = ("all",)
    at: Seconds = 0.0
    until: Seconds | None = None  # process_ended: when its platform has it run again; None: nobody starts it unasked
    restart_s: float = 0.0  # how long the node does not answer; its counters begin anew then
    revision: str = ""  # deploy: what runs afterwards
    exit_status: int = 1
    says: str = ""  # machine_problem, provider_reason: the platform's word and its kind, "DiskPressure/disk"


class ExpectForm(_Form):
    """The right answer: one `cause`, several as good (`or`), one name of each of several (`both`), or `none`."""

    cause: str = ""
    or_: tuple[str, ...] = Field(default=(), alias="or")
    both: tuple[Words, ...] = ()  # of each its name, or the names that are as good
    none: bool = False
    unknown: bool = False  # something is wrong, and what the fleet tells does not say what
    page: bool | None = None  # whether somebody is to be called; None: not judged
    not_remedies: tuple[str, ...] = ()  # words that the remedy's page must not have in its name or its steps
    alerts_within_s: float | None = None
    from_s: float = 0.0  # judged from this age on: before, the fault is not there to be seen

    @model_validator(mode="after")
    def _is_one_answer(self) -> Self:
        if sum(map(bool, (self.cause, self.both, self.none, self.unknown))) != 1:
            raise ValueError("give one of `cause`, `both`, `none`, `unknown`")
        return self

    @property
    def causes(self) -> frozenset[str]:
        """Every cause that counts as right."""
        return frozenset({self.cause, *self.or_, *(name for names in self.both for name in names)} - {""})

    @property
    def in_words(self) -> str:
        """The cause, or those that are at work at once."""
        return self.cause or " and ".join(names[0] for names in self.both)


class Case(_Form):
    """One case, its fleet filled in."""

    name: str = ""
    title: str
    extends: str = ""
    group: str = ""  # node, pool, fleet, two, signals, healthy: how results are counted
    source: str = ""  # where one can read of such an incident
    held_out: bool = False
    seed: int = 1
    before: Seconds = 2700.0
    after: Seconds = 3660.0
    step_s: float = 5.0
    controller: bool = False
    gateway: bool = False
    gpu: bool = True
    is_modelled: bool = True  # false: the nodes have the series of `series` only
    nodes: tuple[NodeForm, ...]
    load: dict[str, float] = Field(default_factory=dict)
    series: tuple[SeriesForm, ...] = ()
    changes: tuple[ChangeForm, ...] = ()
    facts: tuple[FactForm, ...] = ()
    expect: ExpectForm
    judge_at_s: tuple[float, ...] = JUDGED_AFTER_S

    @property
    def engines(self) -> frozenset[str]:
        """The kinds of its nodes."""
        return frozenset(node.engine for node in self.nodes)


def load_case(path: Path) -> Case:
    """The case of a file. Raises BadCaseError."""
    raw = _read(path)
    raw.setdefault("name", path.stem)
    seen = {path.stem}
    while (parent := raw.pop("extends", "")) != "":
        known = sorted(one.stem for one in (HERE / "fleets").glob("*.yaml"))
        if parent not in known or parent in seen:
            raise BadCaseError(f"{path}: extends: there is no fleet {parent!r}; one of {', '.join(known)}")
        seen.add(parent)
        raw = _laid_over(_read(HERE / "fleets" / f"{parent}.yaml"), raw)
    if isinstance(raw.get("nodes"), dict):
        raw["nodes"] = _numbered(raw["nodes"], path)
    try:
        case = Case.model_validate(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise BadCaseError(f"{path}: {where}: {first['msg']} (see docs/diagnosis-benchmark.md)") from None
    _check_places(case, path)
    return case


def load_cases(paths: Iterable[Path]) -> list[Case]:
    """The cases of files and folders, by name. Raises BadCaseError."""
    files: list[Path] = []
    for path in paths:
        files += sorted(path.glob("**/*.yaml")) if path.is_dir() else [path]
    return sorted((load_case(file) for file in files), key=lambda case: case.name)


def builtin_cases() -> list[Case]:
    """The cases that come with this package."""
    return load_cases([HERE / "cases"])


def places(on: Iterable[str], nodes: Iterable[NodeForm]) -> list[str]:
    """The names of the nodes that `on` means: names, `all`, `pool:chat`, `zone:a`, `revision:v1`, `model:m`."""
    found = []
    wanted = list(on)
    for node in nodes:
        known = {node.name, "all", *(f"{key}:{getattr(node, key)}" for key in ("pool", "zone", "revision", "model"))}
        if known.intersection(wanted):
            found.append(node.name)
    return found


def _read(path: Path) -> dict[str, Any]:
    try:
        raw = yaml.load(path.read_text("utf-8"), Loader=_Loader)  # noqa: S506  a safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadCaseError(f"{path}: cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise BadCaseError(f"{path}: a case is a mapping (see docs/diagnosis-benchmark.md)")
    return raw


def _laid_over(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` wins; `load` is merged by name, `series` are added."""
    merged = {**base, **over}
    if "load" in base or "load" in over:
        merged["load"] = {**base.get("load", {}), **over.get("load", {})}
    if "series" in base and "series" in over:
        merged["series"] = [*base["series"], *over["series"]]
    return merged


def _numbered(short: dict[str, Any], path: Path) -> list[dict[str, Any]]:
    """`nodes: {count: 3, engine: vllm, pools: [chat], zones: [a, b]}` as a list of nodes."""
    left = dict(short)
    count, prefix = left.pop("count", 3), left.pop("prefix", "node")
    lists = {key: left.pop(f"{key}s") for key in ("pool", "zone", "revision") if f"{key}s" in left}
    if not isinstance(count, int) or not 1 <= count <= 5000:
        raise BadCaseError(f"{path}: nodes.count: a whole number from 1 to 5000, not {count!r}")
    return [
        {"name": f"{prefix}-{i + 1}", **left, **{key: values[i % len(values)] for key, values in lists.items()}}
        for i in range(count)
    ]


def _check_places(case: Case, path: Path) -> None:
    told = [(f"series.{number}", one.on) for number, one in enumerate(case.series)]
    told += [(f"changes.{number}", one.on) for number, one in enumerate(case.changes)]
    told += [(f"facts.{number}", one.on) for number, one in enumerate(case.facts)]
    for field, on in told:
        for one in on:
            if one not in ("gateway", "controller") and not places([one], case.nodes):
                raise BadCaseError(f"{path}: {field}.on: no node of the fleet is {one!r}")
