"""All sources of the settings, read each at its own interval; what could not be read keeps what it said last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from alerts.errors import BadExpressionError
from fleetctl.discovery.dns_source import DnsSource
from fleetctl.discovery.file_source import FileSource
from fleetctl.discovery.found_node import FoundNode, TargetError, found_node
from fleetctl.discovery.http_sources import HttpSource, PrometheusSource
from fleetctl.discovery.relabel import check_rule, relabelled
from fleetctl.discovery.source import ADDRESS, Source, SourceError, Target
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.key_ring import KeyRing
from fleetctl.settings.targets import StaticTargets, TargetGroup

EMPTY_HOLD_S = 60.0
"""A source that listed nodes and lists none any more is believed after so long: a file that is being replaced and a
name server that has forgotten its zone look the same for a moment, and all requests would be refused meanwhile."""


@dataclass(frozen=True, slots=True)
class Found:
    """What all sources list now. `problems`: place to what is wrong there, for people."""

    nodes: Mapping[str, FoundNode]
    dropped: int  # targets that relabelling drops
    problems: Mapping[str, str]
    unread: frozenset[str] = frozenset()  # sources that were never read: what they list is not known


@dataclass(slots=True)
class _Reading:
    source: Source
    group: TargetGroup
    group_name: str
    targets: Sequence[Target] = ()
    was_read: bool = False
    next_at: float = 0.0
    empty_since: float | None = None
    problem: str = ""
    nodes: list[FoundNode] = field(default_factory=list)
    dropped: int = 0
    refused: dict[str, str] = field(default_factory=dict)  # targets that can't be nodes


class Discovery:
    """Reads what is due and says what is there. One reader at a time."""

    def __init__(self, groups: Sequence[TargetGroup], more: Mapping[str, Sequence[Source]] | None = None) -> None:
        """`more`: sources of other kinds by their group's name. Raises BadInputError naming the rule that is wrong."""
        self._readings: list[_Reading] = []
        for number, group in enumerate(groups, 1):
            name = group.name or f"targets-{number}"
            for place, rule in enumerate(group.relabel_configs):
                try:
                    check_rule(rule)
                except BadExpressionError as error:
                    at = f"fleet.targets.{number - 1}.relabel_configs.{place}.regex"
                    raise BadInputError(
                        f"settings: {at}: {error}", remedy="Go's RE2 syntax, as in Prometheus"
                    ) from error
            sources = [*_sources(group), *(more or {}).get(name, ())]
            self._readings += [_Reading(source, group, name) for source in sources]

    @property
    def is_empty(self) -> bool:
        """Whether the settings name no source."""
        return not self._readings

    async def look(self, now: float) -> Found:
        """Read what is due, and say what is there by everybody's last word. Raises nothing."""
        await asyncio.gather(*(self._read(one, now) for one in self._readings if now >= one.next_at))
        return self._found()

    async def _read(self, reading: _Reading, now: float) -> None:
        reading.next_at = now + reading.source.interval_s
        try:
            targets = await reading.source.read()
        except SourceError as error:
            reading.problem = str(error)
            return
        if not targets and reading.targets:
            reading.empty_since = now if reading.empty_since is None else reading.empty_since
            if now - reading.empty_since < EMPTY_HOLD_S:
                reading.next_at = min(reading.next_at, reading.empty_since + EMPTY_HOLD_S)
                reading.problem = f"{reading.source.name}: lists nothing any more: believed after {EMPTY_HOLD_S:.0f} s"
                return
        reading.empty_since = None
        reading.problem = ""
        if reading.was_read and targets == reading.targets:
            return
        reading.was_read = True
        reading.targets = targets
        _take(reading)

    def _found(self) -> Found:
        nodes: dict[str, FoundNode] = {}
        problems: dict[str, str] = {}
        for reading in self._readings:
            if reading.problem:
                problems[reading.source.name] = reading.problem
            problems |= reading.refused
            for node in reading.nodes:
                standing = nodes.setdefault(node.name, node)
                if standing.url != node.url:
                    problems[node.url] = (
                        f"{node.url} ({node.source}) and {standing.url} are both named {node.name}:"
                        " only the second is there; set the label `node` by relabel_configs"
                    )
        unread = frozenset(one.source.name for one in self._readings if not one.was_read)
        return Found(nodes, sum(one.dropped for one in self._readings), problems, unread)


def with_key_problems(found: Found, keys: KeyRing) -> Found:
    """With what is wrong with keys that nodes name."""
    names = {node.api_key for node in found.nodes.values()}
    problems = {f"api_key {name}": problem for name in sorted(names) if (problem := keys.problem(name))}
    return replace(found, problems={**found.problems, **problems}) if problems else found


def _take(reading: _Reading) -> None:
    """The nodes of the targets that were read."""
    group = reading.group
    reading.nodes, reading.dropped, reading.refused = [], 0, {}
    for target in reading.targets:
        labels = relabelled({**group.labels, **target.labels}, group.relabel_configs)
        if labels is None:
            reading.dropped += 1
            continue
        try:
            node = found_node(
                labels,
                scheme=group.scheme,
                metrics_path=group.metrics_path,
                source=reading.source.name,
                group=reading.group_name,
                api_key=group.api_key,
            )
        except TargetError as error:
            reading.refused[f"{reading.source.name}: {target.labels.get(ADDRESS, '')}"] = str(error)
            continue
        reading.nodes.append(node)


def _sources(group: TargetGroup) -> Iterator[Source]:
    for static in group.static_configs:
        yield _StaticSource(static)
    for files in group.file_sd_configs:
        yield FileSource(files)
    for dns in group.dns_sd_configs:
        yield DnsSource(dns)
    for http in group.http_sd_configs:
        yield HttpSource(http)
    for prometheus in group.prometheus:
        yield PrometheusSource(prometheus)


class _StaticSource:
    """What the settings say themselves: it never changes."""

    name = "settings"
    interval_s = 3600.0

    def __init__(self, settings: StaticTargets) -> None:
        self._targets = [Target({**settings.labels, ADDRESS: address}) for address in settings.targets]

    async def read(self) -> Sequence[Target]:
        """All of them."""
        return self._targets
