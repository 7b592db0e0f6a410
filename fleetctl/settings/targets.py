"""Settings of nodes that run already: where they are listed, in the words of Prometheus' scrape configurations."""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from fleetctl.settings.remote import RemoteServer
from fleetctl.settings.section import LABEL_NAME, Section

MAX_SOURCES = 100
MAX_TARGETS = 20_000  # of one source; a thousand nodes are a large fleet

_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(\d{1,9})(ms|s|m|h|d)")


def _seconds(value: Any) -> Any:
    """`30s` or `5m`, as Prometheus writes it, as seconds; a number is seconds."""
    if isinstance(value, str) and (match := _DURATION.fullmatch(value)):
        return float(match[1]) * _UNITS_S[match[2]]
    return value


Seconds = Annotated[float, BeforeValidator(_seconds)]
LabelName = Annotated[str, Field(pattern=LABEL_NAME, max_length=200)]
LabelValue = Annotated[str, Field(max_length=2000)]
Address = Annotated[str, Field(min_length=1, max_length=1000)]


class StaticTargets(Section):
    """`static_configs`: addresses, and the labels that all of them get."""

    targets: list[Address] = Field(max_length=MAX_TARGETS, description="`HOST:PORT` each.")
    labels: dict[LabelName, LabelValue] = Field(default_factory=dict, description="Labels of all of them.")


class FileTargets(Section):
    """`file_sd_configs`: JSON or YAML files that other programs write, read anew when they change."""

    files: list[Annotated[str, Field(min_length=1, max_length=1000)]] = Field(
        min_length=1, max_length=100, description="Paths, `*` in the last part; relative to the settings file."
    )
    refresh_interval: Seconds = Field(default=5.0, ge=0.1, le=86400, description="Between two looks: `30s`.")


class DnsTargets(Section):
    """`dns_sd_configs`: names of which each answer is a target."""

    names: list[Address] = Field(min_length=1, max_length=100, description="Names to look up.")
    type: Literal["SRV", "A", "AAAA"] = Field(default="SRV", description="Kind of record.")
    port: int | None = Field(default=None, ge=1, le=65535, description="Of A and AAAA records, which have none.")
    refresh_interval: Seconds = Field(
        default=30.0, ge=0.1, le=86400, description="Between two look-ups, such as `30s`."
    )

    @model_validator(mode="after")
    def _has_port(self) -> DnsTargets:
        if self.type != "SRV" and self.port is None:
            raise ValueError(f"records of type {self.type} have no port: give `port`")
        return self


class HttpTargets(RemoteServer):
    """`http_sd_configs`: a URL that answers with what a file of targets holds."""

    example: ClassVar[str] = "http://inventory:8080/targets"
    section: ClassVar[str] = "fleet.targets"

    refresh_interval: Seconds = Field(default=60.0, ge=0.1, le=86400, description="Between two reads, such as `30s`.")


class PrometheusTargets(RemoteServer):
    """The targets that a Prometheus scrapes already, with the labels that they have there."""

    example: ClassVar[str] = "http://prometheus:9090"
    api_path: ClassVar[str] = "/api/v1"
    section: ClassVar[str] = "fleet.targets"

    job: str = Field(default=".+", min_length=1, max_length=500, description="Jobs to take, a regular expression.")
    refresh_interval: Seconds = Field(default=30.0, ge=0.1, le=86400, description="Between two reads, such as `30s`.")


class RelabelRule(Section):
    """One rule of `relabel_configs`; what each key means is Prometheus' own."""

    source_labels: list[LabelName] = Field(default_factory=list, max_length=50, description="Labels that are joined.")
    separator: str = Field(default=";", max_length=100, description="Between them.")
    target_label: str = Field(default="", max_length=200, description="Label that is set.")
    regex: str = Field(default="(.*)", max_length=4096, description="Must match the whole value.")
    modulus: int = Field(default=0, ge=0, le=1 << 32, description="Of `hashmod`.")
    replacement: str = Field(default="$1", max_length=2000, description="Value; `$1` is the first group.")
    action: Literal[
        "replace",
        "keep",
        "drop",
        "keepequal",
        "dropequal",
        "hashmod",
        "labelmap",
        "labeldrop",
        "labelkeep",
        "lowercase",
        "uppercase",
    ] = Field(default="replace", description="What is done.")

    @field_validator("action", mode="before")
    @classmethod
    def _any_case(cls, value: Any) -> Any:
        return value.lower() if isinstance(value, str) else value

    @model_validator(mode="after")
    def _has_its_target(self) -> RelabelRule:
        names_no_target = ("keep", "drop", "labelmap", "labeldrop", "labelkeep")
        if self.action not in names_no_target and not self.target_label:
            raise ValueError(f"action {self.action} needs target_label")
        if self.action == "hashmod" and not self.modulus:
            raise ValueError("action hashmod needs modulus")
        return self


class TargetGroup(Section):
    """Nodes of one place. Labels `node`, `pool`, `model`, `engine`, `zone`, `revision`, `host`, `gpu` and `sku`, after
    relabelling, say what each is; engine, version and model that nobody says are asked of the node itself."""

    name: str = Field(
        default="",
        max_length=100,
        description="For messages.",
        json_schema_extra={"default": "targets-1, targets-2, ..."},
    )
    static_configs: list[StaticTargets] = Field(
        default_factory=list, max_length=MAX_SOURCES, description="Addresses that stand here."
    )
    file_sd_configs: list[FileTargets] = Field(
        default_factory=list, max_length=MAX_SOURCES, description="Files of targets."
    )
    dns_sd_configs: list[DnsTargets] = Field(default_factory=list, max_length=MAX_SOURCES, description="Names in DNS.")
    http_sd_configs: list[HttpTargets] = Field(
        default_factory=list, max_length=MAX_SOURCES, description="URLs that answer with target groups."
    )
    prometheus: list[PrometheusTargets] = Field(
        default_factory=list, max_length=16, description="Servers whose targets are taken."
    )
    relabel_configs: list[RelabelRule] = Field(
        default_factory=list, max_length=200, description="What is made of the labels, in this order."
    )
    scheme: Literal["http", "https"] = Field(default="http", description="How nodes are asked.")
    metrics_path: str = Field(
        default="",
        max_length=500,
        description="Path of the nodes' metrics.",
        json_schema_extra={"default": "that of the engine"},
    )
    api_key: str = Field(
        default="",
        max_length=100,
        description="Key of `fleet.api_keys` that the nodes want; the label `api_key` names another one.",
    )
    labels: dict[LabelName, LabelValue] = Field(
        default_factory=dict, max_length=50, description="Labels of all targets, before relabelling: `{engine: vllm}`."
    )

    @model_validator(mode="after")
    def _has_a_source(self) -> TargetGroup:
        sources = (
            self.static_configs,
            self.file_sd_configs,
            self.dns_sd_configs,
            self.http_sd_configs,
            self.prometheus,
        )
        if not any(sources):
            raise ValueError("names no source: give static_configs, file_sd_configs, dns_sd_configs, ...")
        return self
