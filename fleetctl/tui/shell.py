"""Commands of fleetctl that are run as they stand when they are typed after `:`, and which of them may be. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

LOOKS = frozenset(
    {
        "audit",
        "describe",
        "diagnose",
        "diff",
        "discover",
        "doctor",
        "events",
        "explain",
        "get",
        "hosts",
        "logs",
        "status",
    }
)
LOOKING_ENDS = frozenset(
    {"check", "coverage", "explain", "history", "lint", "list", "logs", "report", "show", "status", "verify", "whoami"}
)
"""Commands that change nothing, by their first and by their last word: they are run unasked."""

ELSEWHERE = frozenset({"top", "demo", "up", "load", "controller run", "gateway run"})
"""Commands that want a terminal, or a process, of their own."""

SILENCED_FOR = "1h"
OF_PLACE = ("node", "instance", "gateway", "receiver", "tenant", "pool", "model")
"""Labels by which a silence fits an alert: those of a version or an engine change with the next start."""

ENDLESS = frozenset({"-w", "--watch", "-f", "--follow"})
ASKS = frozenset({"drill inject"})  # on a terminal: here that is asked before


@dataclass(frozen=True, slots=True)
class Printed:
    """What a command printed, and its exit code."""

    exit_code: int
    text: str


class Shell(Protocol):
    """Runs commands of fleetctl against the controller that is shown."""

    @property
    def commands(self) -> Collection[str]:
        """All that are no verbs, by their own words: `silence add`."""
        ...

    @property
    def kinds(self) -> Sequence[str]:
        """What can be listed."""
        ...

    async def run(self, words: Sequence[str], columns: int) -> Printed:
        """Run it to its end; cancelled, it is ended."""
        ...


@dataclass(frozen=True, slots=True)
class Command:
    """One of them. `name`: its own words, without what it is about and options."""

    words: tuple[str, ...]
    name: str

    @property
    def line(self) -> str:
        """As it is typed in a shell."""
        return f"fleetctl {shlex.join(self.words)}"

    @property
    def only_looks(self) -> bool:
        """Whether it changes nothing."""
        first, *_, last = (*self.name.split(), self.name.split()[-1])
        return first in LOOKS or last in LOOKING_ENDS or "--help" in self.words

    @property
    def why_not(self) -> str:
        """Why it can't be run from here; empty where it can."""
        if "--help" in self.words:
            return ""
        if self.name in ELSEWHERE:
            return f"{self.name} wants a terminal of its own"
        endless = sorted(ENDLESS & set(self.words))
        return f"{self.name} {endless[0]} would not end here" if endless else ""


def command_of(words: Sequence[str], commands: Collection[str]) -> Command | None:
    """The longest of these commands that the words begin with; None: they begin with none."""
    for length in range(min(3, len(words)), 0, -1):
        name = " ".join(words[:length])
        if name in commands:
            asked = ("--yes",) if name in ASKS and not {"--yes", "-y"} & set(words) else ()
            return Command((*words, *asked), name)
    return None


def silence_alert(name: str, labels: Mapping[str, str], why: str) -> Command:
    """What silences an alert where it is."""
    matchers = (f"{label}={labels[label]}" for label in OF_PLACE if labels.get(label))
    return Command(("silence", "add", name, *matchers, "--duration", SILENCED_FOR, "--comment", why), "silence add")


def silence_incident(incident_id: str, why: str) -> Command:
    """What silences all alerts of an incident where they are."""
    words = ("incident", "silence", incident_id, "--for", SILENCED_FOR, "--comment", why)
    return Command(words, "incident silence")
