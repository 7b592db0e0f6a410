"""Who asks: the name and the role that a token stands for, never what a caller says of itself."""

from __future__ import annotations

from dataclasses import dataclass

from fleetctl.kit.errors import RefusedError
from fleetctl.wire.identity import NO_CLAIM, TokenRole

MAX_CLAIM_CHARS = 60


class ForbiddenError(RefusedError):
    """The caller is known and its role does not suffice."""


@dataclass(frozen=True, slots=True)
class Identity:
    """A caller. `name` has no space; `via` are its credentials as the audit calls them."""

    name: str
    role: TokenRole
    via: str

    def with_claim(self, claim: str) -> str:
        """The name; behind it, marked as such, whom the caller says it acts for: "admin (says ann)"."""
        claim = "".join(char for char in claim if char.isprintable() and char not in "()").strip()[:MAX_CLAIM_CHARS]
        return self.name if claim in ("", NO_CLAIM, self.name) else f"{self.name} (says {claim})"
