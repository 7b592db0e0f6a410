"""A revision: all that decides how a node answers, immutable and named by the hash of what it says."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from fleetctl.providers.providers import LOCAL
from fleetctl.providers.spec import NodeSpec, OptionValue

ID_DIGITS = 12
MODEL_DIR, ADAPTERS, PROMPT_TEMPLATE = "model", "lora_modules", "chat_template"
"""Options that have a field of their own in a revision; `lora_modules` and `chat_template` are vLLM's names."""

Argument = str | bool | list[str]
"""As on a command line: a word, a bare option (or its `--no-` form), or several words."""


@dataclass(frozen=True, slots=True)
class Revision:
    """What a node serves and with which settings. Two that would be started with the same words are one."""

    model: str  # the name that clients ask for
    engine: str
    model_dir: str
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    adapters: tuple[str, ...] = ()
    prompt_template: str = ""  # empty: the one in the model's directory

    @classmethod
    def of(cls, spec: NodeSpec) -> Revision:
        """The revision that a node of this spec is of. Name, pool and zone are no part of it."""
        options = {key.replace("-", "_"): _argument(value) for key, value in spec.options.items() if value is not None}
        adapters = options.pop(ADAPTERS, ())
        return cls(
            model=spec.model,
            engine=spec.engine,
            model_dir=str(options.pop(MODEL_DIR, "")),
            prompt_template=str(options.pop(PROMPT_TEMPLATE, "")),
            adapters=tuple(adapters) if isinstance(adapters, list) else (str(adapters),) if adapters else (),
            arguments=dict(sorted(options.items())),
        )

    @property
    def id(self) -> str:
        """`rev-` and the beginning of the SHA-256 of its document as JSON with sorted keys."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return f"rev-{hashlib.sha256(text.encode()).hexdigest()[:ID_DIGITS]}"

    def spec(self, name: str, *, pool: str, zone: str) -> NodeSpec:
        """A node of this revision."""
        options: dict[str, OptionValue] = {**self.arguments}
        if self.model_dir:
            options[MODEL_DIR] = self.model_dir
        if self.adapters:
            options[ADAPTERS] = list(self.adapters)
        if self.prompt_template:
            options[PROMPT_TEMPLATE] = self.prompt_template
        return NodeSpec(
            name=name, pool=pool, model=self.model, engine=self.engine, zone=zone, revision=self.id, options=options
        )

    def to_json(self) -> dict[str, Any]:
        """The document, as it is hashed and stored."""
        return {**asdict(self), "arguments": dict(self.arguments), "adapters": list(self.adapters)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Revision:
        """A stored document."""
        return cls(**{**document, "adapters": tuple(document["adapters"])})


def with_revision(spec: NodeSpec) -> NodeSpec:
    """The spec with the id of its own revision, whatever it said before. A node that others start has theirs."""
    return replace(spec, revision=Revision.of(spec).id) if is_ours(spec) else spec


def is_ours(spec: NodeSpec) -> bool:
    """Whether its options are all that decides how it answers: those that it is started with."""
    return spec.provider == LOCAL


def _argument(value: OptionValue) -> Argument:
    """`16` and `"16"` are the same word."""
    if isinstance(value, bool):
        return value
    return [str(one) for one in value] if isinstance(value, list) else str(value)
