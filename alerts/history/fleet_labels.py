"""Labels of a Prometheus that is not ours, as our signals want them: which engine, node, pool and model a target is.

What a series says itself in our own words stands. The rest is read off what is scraped: the engine from its metrics'
names, the node from `node`, `pod` or `instance` (the first that tells targets apart), the pool from the job, the
model from `model_name`. A card belongs to the pod that dcgm-exporter says uses it, else with what node_exporter tells
to the only engine on its host; of pods kube-state-metrics tells the host.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from alerts.history.prometheus_source import RangeSeries
from alerts.labels import METRIC_NAME, LabelSet

_NAMESPACES = (
    ("engine_", "fleetctl"),
    ("vllm:", "vllm"),
    ("sglang:", "sglang"),
    ("llamacpp:", "llamacpp"),
    ("trtllm_", "trtllm"),
    ("tgi_", "tgi"),
    ("nv_", "triton"),
    ("DCGM_", "dcgm"),
)
_ENGINES = frozenset(engine for _, engine in _NAMESPACES)
_ORDER = {engine: rank for rank, (_, engine) in enumerate(_NAMESPACES)}
_OF_HOST = "node_"  # node_exporter's
_OF_POD = "kube_pod_info"
_NODE_LABELS = ("node", "pod", "kubernetes_pod_name", "instance")
_POD_OF_CARD = ("exported_pod", "pod")  # who uses it: dcgm-exporter's own word
_POOL_LABELS = ("pool", "job")
_MODEL_LABELS = ("model", "model_name")

_Target = tuple[str, str]


@dataclass(slots=True)
class _Told:
    """What a target's series say of it."""

    engine: str = ""
    labels: dict[str, str] = field(default_factory=dict)  # the first value of each


class FleetLabels:
    """Gives every series of these rows its place. Equal for equal rows."""

    def __init__(
        self, rows: Iterable[RangeSeries], rules: Mapping[str, str] | None = None, like: FleetLabels | None = None
    ) -> None:
        """`rules`: labels that the reader states: `{"node": "$pod", "pool": "chat"}`; `$x` copies label x.

        `like`: the same fleet at another time; what is known of its targets stands.
        """
        self._rules = dict(rules or {})
        self._told: dict[_Target, _Told] = {} if like is None else copy.deepcopy(like._told)
        self._host_of_pod: dict[str, str] = {} if like is None else dict(like._host_of_pod)
        for row in rows:
            if row.labels.get(METRIC_NAME) == _OF_POD and (pod_ip := row.labels.get("pod_ip")):
                self._host_of_pod[pod_ip] = row.labels.get("host_ip") or pod_ip
            told = self._told.setdefault(_target_of(row.labels), _Told())
            for name, value in row.labels.pairs:
                told.labels.setdefault(name, value)
            engine = _engine_of(row.labels)
            if engine and (not told.engine or _ORDER[engine] < _ORDER[told.engine]):
                told.engine = engine
        engines = [one for one in self._told.values() if one.engine not in ("", "dcgm")]
        self._node_label: str = _distinct(engines) if like is None else like._node_label
        self._engine_of_node = {one.labels.get(self._node_label, ""): one for one in engines}
        self._engine_of_host = self._hosts()

    def __call__(self, labels: LabelSet) -> LabelSet:
        """The labels under which a series is kept."""
        told = self._told.get(_target_of(labels), _Told())
        if not told.engine:
            return self._of_host(labels) if labels.get(METRIC_NAME).startswith(_OF_HOST) else labels
        plain = labels.as_dict()
        if plain.get("engine") and plain["engine"] not in _ENGINES:
            plain["exported_engine"] = plain.pop("engine")  # vLLM's data-parallel rank
        for name, value in self._places(told, plain).items():
            stated = self._stated(name, plain, told)
            if stated or not plain.get(name) or (name == "node" and told.engine == "dcgm"):
                plain[name] = stated or value
        if self._node_label != "node" and told.engine != "dcgm" and not self._rules.get("node"):
            plain["node"] = told.labels.get(self._node_label, "")
        return LabelSet.of({name: value for name, value in plain.items() if value})

    def _of_host(self, labels: LabelSet) -> LabelSet:
        """What is told of a host is told of its only engine; of another host it stays as it is."""
        engine = self._engine_of_host.get(self._host_of(labels.get("instance")))
        if engine is None:
            return labels
        places = {name: value for name, value in self._places(engine).items() if name in ("node", "pool")}
        return LabelSet.of({**labels.as_dict(), **{name: value for name, value in places.items() if value}})

    def _stated(self, name: str, plain: Mapping[str, str], told: _Told) -> str:
        rule = self._rules.get(name, "")
        return plain.get(rule[1:]) or told.labels.get(rule[1:], "") if rule.startswith("$") else rule

    def _places(self, told: _Told, row: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        """`row`: the labels of a card, which may say whose it is."""
        if told.engine == "dcgm":
            host = self._host_of(told.labels.get("instance", ""))
            pods = (row.get(name, "") for name in _POD_OF_CARD)
            engine = next((self._engine_of_node[pod] for pod in pods if pod in self._engine_of_node), None)
            engine = engine or self._engine_of_host.get(host)
            theirs = {"node": host, "pool": ""} if engine is None else self._places(engine)
            return {**theirs, "engine": told.engine, "model": _first(told.labels, _MODEL_LABELS)}
        return {
            "engine": told.engine,
            "node": self._rule("node", told) or told.labels.get(self._node_label, ""),
            "pool": self._rule("pool", told) or _first(told.labels, _POOL_LABELS),
            "model": _first(told.labels, _MODEL_LABELS),
        }

    def _rule(self, name: str, told: _Told) -> str:
        return self._stated(name, told.labels, told) if name in self._rules else ""

    def _hosts(self) -> dict[str, _Told]:
        """The engine of each host that has one only."""
        engines = [one for one in self._told.values() if one.engine not in ("", "dcgm")]
        hosts = Counter(self._host_of(one.labels.get("instance", "")) for one in engines)
        return {host: one for one in engines if hosts[host := self._host_of(one.labels.get("instance", ""))] == 1}

    def _host_of(self, instance: str) -> str:
        address = instance.rpartition(":")[0] or instance
        return self._host_of_pod.get(address, address)


def _distinct(targets: Sequence[_Told]) -> str:
    """The first label that every target has and no two share."""
    for name in _NODE_LABELS:
        values = [one.labels.get(name, "") for one in targets]
        if all(values) and len(set(values)) == len(values):
            return name
    return "node" if all(one.labels.get("node") for one in targets) else "instance"


def _engine_of(labels: LabelSet) -> str:
    if labels.get("engine") in _ENGINES:
        return labels.get("engine")
    name = labels.get(METRIC_NAME)
    return next((engine for begin, engine in _NAMESPACES if name.startswith(begin)), "")


def _first(labels: Mapping[str, str], names: Iterable[str]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def _target_of(labels: LabelSet) -> _Target:
    return labels.get("job"), labels.get("instance")
