"""Settings of nodes that are units of hosts: which there are, and by which commands they are run."""

from __future__ import annotations

import re
from collections import Counter
from typing import Annotated, ClassVar

from pydantic import Field, field_validator, model_validator

from fleetctl.settings.section import Section

Words = Annotated[tuple[Annotated[str, Field(min_length=1, max_length=2000)], ...], Field(min_length=1, max_length=100)]

HOST_NAME = r"^[A-Za-z0-9_][A-Za-z0-9._:@-]*$"
UNIT_NAME = r"^[A-Za-z0-9_@:.][A-Za-z0-9_@:.\\-]*$"
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_SEVERAL = frozenset({"words", "units", "options"})  # stand alone, for any number of words


class HostNode(Section):
    """A node that may run on a host: one unit at one address."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$", description="Its name in every list.")
    host: str = Field(pattern=HOST_NAME, max_length=253, description="The host, as the command reaches it.")
    url: str = Field(
        pattern=r"^https?://[^\s/?#]+$", max_length=500, description="Where it answers: `http://gpu-1:8000`."
    )
    unit: str = Field(default="vllm.service", pattern=UNIT_NAME, max_length=255, description="Its unit on the host.")
    engine: str = Field(default="vllm", max_length=50, description="Which engine it is: docs/engines/README.md.")
    model: str = Field(min_length=1, max_length=500, description="Name that clients ask for.")
    pool: str = Field(default="default", min_length=1, max_length=200, description="Pool that it is in.")
    zone: str = Field(default="", max_length=200, description="Where the host is.")
    sku: str = Field(default="", max_length=200, description="What kind of host it is, for cost and failures.")


class HostsSettings(Section):
    """Nodes as units of hosts, run by commands. Each command is a list of words: no shell of ours reads it."""

    nodes: list[HostNode] = Field(
        min_length=1,
        max_length=2000,
        description="Every node that may run. One whose unit does not run is spare, until it is started.",
    )
    connect: Words = Field(
        default=("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", "{host}", "{command}"),
        description="Reaches a host. `{command}`: the command as one word, quoted for the shell there; `{words}`: its"
        " words, where there is no shell.",
        json_schema_extra={"default": "ssh -o BatchMode=yes -o ConnectTimeout=5 -- {host} {command}"},
    )
    start: Words = Field(
        default=("systemctl", "start", "--no-block", "--", "{unit}"),
        description="Starts a node. `{options}`: the words of its options.",
        json_schema_extra={"default": "systemctl start --no-block -- {unit}"},
    )
    stop: Words = Field(
        default=("systemctl", "stop", "--no-block", "--", "{unit}"),
        description="Asks it to end, without waiting.",
        json_schema_extra={"default": "systemctl stop --no-block -- {unit}"},
    )
    kill: Words = Field(
        default=("systemctl", "kill", "--signal=SIGKILL", "--", "{unit}"),
        description="Ends it by force, when it did not end in time.",
        json_schema_extra={"default": "systemctl kill --signal=SIGKILL -- {unit}"},
    )
    observe: Words = Field(
        default=(
            "systemctl",
            "show",
            "--property=ActiveState,SubState,Result,InvocationID,ExecMainCode,ExecMainStatus",
            "--",
            "{units}",
        ),
        description="Tells how all `{units}` of a host are, in their order, in systemctl's words.",
        json_schema_extra={"default": "systemctl show --property=ActiveState,SubState,Result,... -- {units}"},
    )
    logs: Words = Field(
        default=("journalctl", "--unit={unit}", "--output=json", "--no-pager", "--lines={lines}"),
        description="The last `{lines}` that it wrote, as journalctl's JSON.",
        json_schema_extra={"default": "journalctl --unit={unit} --output=json --no-pager --lines={lines}"},
    )
    logs_after: Words = Field(
        default=("journalctl", "--unit={unit}", "--output=json", "--no-pager", "--after-cursor={cursor}"),
        description="What it wrote after a `{cursor}`.",
        json_schema_extra={"default": "journalctl --unit={unit} --output=json --no-pager --after-cursor={cursor}"},
    )
    timeout_s: float = Field(default=15.0, ge=1, le=300, description="Until a command is given up.")
    look_every_s: float = Field(default=5.0, ge=0.1, le=300, description="Between two looks at a host.")
    stale_after_s: float = Field(
        default=30.0, ge=1, le=3600, description="Without a look for so long, nothing is known of a host's nodes."
    )

    _PLACES: ClassVar[dict[str, frozenset[str]]] = {
        "connect": frozenset({"host", "command", "words"}),
        "start": frozenset({"unit", "host", "node", "port", "model", "pool", "options"}),
        "stop": frozenset({"unit", "host", "node"}),
        "kill": frozenset({"unit", "host", "node"}),
        "observe": frozenset({"units", "host"}),
        "logs": frozenset({"unit", "host", "node", "lines"}),
        "logs_after": frozenset({"unit", "host", "node", "cursor"}),
    }
    _NEEDS: ClassVar[dict[str, frozenset[str]]] = {
        "connect": frozenset({"command", "words"}),
        "observe": frozenset({"units"}),
        "logs_after": frozenset({"cursor"}),
    }

    @field_validator("nodes")
    @classmethod
    def _named_once(cls, nodes: list[HostNode]) -> list[HostNode]:
        for what, of in (("name", lambda n: n.name), ("host and unit", lambda n: f"{n.host} {n.unit}")):
            if twice := sorted(one for one, times in Counter(map(of, nodes)).items() if times > 1):
                raise ValueError(f"two have the {what} {twice[0]}")
        return nodes

    @model_validator(mode="after")
    def _has_known_places(self) -> HostsSettings:
        for name, known in self._PLACES.items():
            words: tuple[str, ...] = getattr(self, name)
            found = {place for word in words for place in _PLACEHOLDER.findall(word)}
            if strange := sorted(found - known):
                places = ", ".join(f"{{{one}}}" for one in sorted(known))
                raise ValueError(f"{name}: {{{strange[0]}}} is none of {places}")
            for word in words:
                inside = set(_PLACEHOLDER.findall(word)) & _SEVERAL
                if inside and word != f"{{{next(iter(inside))}}}":
                    raise ValueError(f"{name}: {word!r}: {{{next(iter(inside))}}} stands alone, for several words")
            needs = self._NEEDS.get(name, frozenset())
            if needs and not needs & found:
                raise ValueError(f"{name}: it has no {' or '.join(f'{{{one}}}' for one in sorted(needs))}")
        return self
