"""What is said in a notification, in no receiver's words yet; and the plain text of all of them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

MAX_LINES = 50  # of a digest: what is more is counted
MAX_HEADLINE_CHARS = 300


class NoticeKind(StrEnum):
    """What a message is for."""

    OPENED = "opened"  # the first one about an incident
    UPDATE = "update"
    ACKNOWLEDGED = "acknowledged"
    RESOLVED = "resolved"
    ESCALATED = "escalated"  # nobody acknowledged it
    DIGEST = "digest"  # several that were held back
    STEP = "step"  # a runbook's `notify`
    TEST = "test"

    @property
    def calls(self) -> bool:
        """Whether it is meant to call somebody, also where news about what is known calls nobody."""
        return self in (NoticeKind.OPENED, NoticeKind.ESCALATED, NoticeKind.DIGEST, NoticeKind.TEST, NoticeKind.STEP)


@dataclass(frozen=True, slots=True)
class Notice:
    """One message. Empty texts: there is nothing to say of it; what is not known is said in words."""

    kind: NoticeKind
    headline: str
    severity: str = ""
    sev: str = ""  # SEV-1 to SEV-4
    incident: str = ""  # its id
    run: str = ""
    news: tuple[str, ...] = ()  # what is new since the last message of its thread
    cause: str = ""  # with its confidence
    impact: str = ""
    doing: str = ""  # what is being done, or who is waited for
    approve: str = ""  # the exact command
    show: str = ""  # the command that shows all of it
    link: str = ""
    dashboard: str = ""
    lines: tuple[str, ...] = ()  # of a digest, one for each incident

    @property
    def subject(self) -> str:
        """One line of it."""
        mark = {
            NoticeKind.TEST: "[TEST] ",
            NoticeKind.ESCALATED: "[nobody has acknowledged this] ",
            NoticeKind.RESOLVED: "[resolved] ",
        }.get(self.kind, "")
        sev = f"{self.sev} " if self.sev else ""
        return f"{mark}{sev}{one_line(self.headline)}"[:MAX_HEADLINE_CHARS]

    @property
    def body(self) -> str:
        """Everything but the subject, as plain text."""
        told = [
            *self.news,
            *(f"- {line}" for line in shortened(self.lines)),
            *(
                f"{name}: {text}"
                for name, text in (
                    ("cause", self.cause),
                    ("impact", self.impact),
                    ("being done", self.doing),
                    ("approve", self.approve),
                    ("all of it", self.show),
                    ("page", self.link),
                    ("dashboard", self.dashboard),
                )
                if text
            ),
        ]
        return "\n".join(told)

    @property
    def text(self) -> str:
        """All of it."""
        return f"{self.subject}\n{self.body}" if self.body else self.subject

    def facts(self) -> dict[str, str]:
        """What machines read: the fields that say something."""
        named = {
            "incident": self.incident,
            "run": self.run,
            "severity": self.severity,
            "cause": self.cause,
            "impact": self.impact,
            "doing": self.doing,
            "approve": self.approve,
            "link": self.link,
            "dashboard": self.dashboard,
        }
        return {name: text for name, text in named.items() if text}


def shortened(lines: Sequence[str]) -> list[str]:
    """The first lines, and how many there are beside them."""
    more = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], *([f"and {more} more: fleetctl incident list"] if more > 0 else [])]


def one_line(text: str) -> str:
    """Without line breaks and what else a mail's header, or a terminal, would take as a command."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
