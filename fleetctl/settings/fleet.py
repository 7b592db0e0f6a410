"""Settings of the fleet that `fleetctl up` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from fleetctl.kit.key_ring import KeyPlace, KeyRing
from fleetctl.providers.spec import OptionValue, options_from_words
from fleetctl.settings.section import Section
from fleetctl.settings.targets import TargetGroup


class ApiKey(Section):
    """Where a key lies that nodes want of whoever asks them. Read again while we run: it may be changed."""

    file: Path | None = Field(default=None, description="File that holds the key.")
    env: str | None = Field(
        default=None, min_length=1, max_length=200, description="Variable of the environment that holds it."
    )

    @model_validator(mode="after")
    def _lies_in_one_place(self) -> ApiKey:
        if (self.file is None) is (self.env is None):
            raise ValueError("give file or env, one of them")
        if self.env is not None and self.env.startswith("FLEETCTL_"):
            raise ValueError(f"env: {self.env}: variables that begin with FLEETCTL_ are hidden from our processes")
        return self


class CommandNodes(Section):
    """Nodes of any engine that are started on this machine by a command: `[vllm, serve, DIR, --port, "{port}"]`."""

    name: str = Field(
        default="",
        max_length=50,
        description="Beginning of their names: `vllm` gives vllm-1, vllm-2.",
        json_schema_extra={"default": "the engine"},
    )
    engine: str = Field(default="openai", max_length=50, description="Which engine it is: docs/engines/README.md.")
    command: list[Annotated[str, Field(max_length=4000)]] = Field(
        min_length=1,
        max_length=200,
        description="Program and arguments; `{port}`, `{host}`, `{node}`, `{model}` and `{pool}` are filled in.",
    )
    env: dict[str, str] = Field(
        default_factory=dict, max_length=100, description="Environment variables; secrets belong into files."
    )
    nodes: int = Field(default=1, ge=1, le=64, description="How many of them.")
    model: str = Field(
        default="",
        max_length=500,
        description="Name that clients ask for.",
        json_schema_extra={"default": "fleet.model"},
    )
    pool: str = Field(
        default="", max_length=200, description="Pool that they are in.", json_schema_extra={"default": "fleet.pool"}
    )
    api_key: str = Field(
        default="", max_length=100, description="Key of `fleet.api_keys` that they want: their command names it too."
    )

    @model_validator(mode="after")
    def _has_port(self) -> CommandNodes:
        if not any("{port}" in word for word in self.command):
            raise ValueError("its command has no {port}: each node listens at a port of its own")
        return self


class FleetSettings(Section):
    """The fleet that is started when there is none yet."""

    model_dir: Path | None = Field(
        default=None,
        description="Hugging Face directory or GGUF file to serve.",
        json_schema_extra={"default": "a small model, made once under <state_dir>"},
    )
    model: str = Field(
        default="demo", description="Name that clients ask for. Without `model_dir`, `smollm2` is fetched and served."
    )
    pool: str = Field(default="default", description="Pool that its nodes are in.")
    nodes: int = Field(
        default=3,
        ge=0,
        le=64,
        description="Number of nodes of a new fleet that are started here.",
        json_schema_extra={"default": "3; none where there are `targets`, `commands` or `providers.kubernetes`"},
    )
    ready_timeout_s: float = Field(default=180.0, gt=0, le=3600, description="Until every part must be ready.")
    api_keys: dict[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")], ApiKey] = Field(
        default_factory=dict,
        max_length=100,
        description="Keys that nodes want, by a name that `targets` and `commands` use:"
        " `{chat: {file: /etc/keys/chat}}`. Controller and gateways read them.",
    )
    targets: list[TargetGroup] = Field(
        default_factory=list,
        max_length=100,
        description="Nodes that run already, listed in the words of Prometheus: docs/attach.md.",
    )
    commands: list[CommandNodes] = Field(
        default_factory=list,
        max_length=50,
        description="Nodes of other engines that a new fleet starts on this machine, each by a command.",
    )
    enable_faults: bool = Field(default=False, description="Nodes accept fault injection: drills only.")
    node_options: dict[str, OptionValue] = Field(
        default_factory=dict,
        max_length=50,
        description="Options of `fleetctl-node serve`, e.g. `{max_num_seqs: 16}`: passed on; the engine checks them.",
    )

    @field_validator("targets")
    @classmethod
    def _named_once(cls, groups: list[TargetGroup]) -> list[TargetGroup]:
        names = [group.name for group in groups if group.name]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two are named {twice[0]}")
        return groups

    @model_validator(mode="after")
    def _knows_its_keys(self) -> FleetSettings:
        used = {one.api_key for one in self.targets} | {one.api_key for one in self.commands}
        if unknown := sorted(used - self.api_keys.keys() - {""}):
            raise ValueError(f"api_key: api_keys has no {unknown[0]}")
        return self

    def key_ring(self) -> KeyRing:
        """The keys, as they are read where they lie."""
        return KeyRing({name: KeyPlace(key.env, key.file) for name, key in self.api_keys.items()})

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, tree: Any) -> Any:
        """Files written before 0.2 have the options as `node_args`, a list of words. Where nodes run already, none is
        started unless somebody says how many."""
        if isinstance(tree, dict) and (tree.get("targets") or tree.get("commands")) and "nodes" not in tree:
            tree = {**tree, "nodes": 0}
        if not isinstance(tree, dict) or not isinstance(words := tree.get("node_args"), list):
            return tree
        rest = {key: value for key, value in tree.items() if key != "node_args"}
        return {**rest, "node_options": {**options_from_words(words), **rest.get("node_options", {})}}
