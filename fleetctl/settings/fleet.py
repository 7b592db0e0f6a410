"""Settings of the fleet that `fleetctl up` starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from fleetctl.providers.spec import OptionValue, options_from_words
from fleetctl.settings.section import Section


class FleetSettings(Section):
    """The fleet that is started when there is none yet."""

    model_dir: Path | None = Field(
        default=None,
        description="Hugging Face directory to serve.",
        json_schema_extra={"default": "a small model, made once under <state_dir>"},
    )
    model: str = Field(default="demo", description="Name that clients ask for.")
    pool: str = Field(default="default", description="Pool that its nodes are in.")
    nodes: int = Field(default=3, ge=1, le=64, description="Number of nodes of a new fleet.")
    ready_timeout_s: float = Field(default=180.0, gt=0, le=3600, description="Until every part must be ready.")
    enable_faults: bool = Field(default=False, description="Nodes accept fault injection: drills only.")
    node_options: dict[str, OptionValue] = Field(
        default_factory=dict,
        max_length=50,
        description="Options of `fleetctl-node serve`, e.g. `{max_num_seqs: 16}`: passed on; the engine checks them.",
    )

    @model_validator(mode="before")
    @classmethod
    def _from_words(cls, tree: Any) -> Any:
        """Files written before 0.2 have the options as `node_args`, a list of words."""
        if not isinstance(tree, dict) or not isinstance(words := tree.get("node_args"), list):
            return tree
        rest = {key: value for key, value in tree.items() if key != "node_args"}
        return {**rest, "node_options": {**options_from_words(words), **rest.get("node_options", {})}}
