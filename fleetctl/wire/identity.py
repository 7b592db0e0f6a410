"""Who asks, with which token, and what its role may do."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from fleetctl.wire.base import Body, Wire

NO_CLAIM = "api"
"""What `by` fields hold when the caller says nothing of itself: its token says who it is."""

TOKEN_PREFIX = "flt-"  # noqa: S105 - no secret
"""How the controller's named tokens begin."""


class TokenRole(StrEnum):
    """What a token may do; each role may also do what those before it may."""

    VIEWER = "viewer"  # read
    OPERATOR = "operator"  # ask for changes, and make those that need no other person
    APPROVER = "approver"  # answer what others, or automation, propose
    ADMIN = "admin"  # make and revoke tokens

    def includes(self, other: TokenRole) -> bool:
        """Whether it may do what `other` may."""
        order = list(TokenRole)
        return order.index(self) >= order.index(other)


class CallerInfo(Wire):
    """Whom the controller takes the caller for."""

    name: str
    role: TokenRole
    via: str  # its credentials


class TokenInfo(Wire):
    """A named token of the controller, without the token itself."""

    name: str  # of a person or a program
    role: TokenRole  # what it may do
    id: str  # the first digits of its hash
    is_valid: bool  # it opens something now
    created_at: float  # when it was made
    created_by: str  # by whom
    expires_at: float | None = None  # None: never
    revoked_at: float | None = None  # None: it was not
    revoked_by: str = ""  # by whom
    last_used_at: float | None = None  # None: never, as far as is known


class MadeToken(TokenInfo):
    """A new token, told this once."""

    token: str = Field(repr=False)


class TokenRequest(Body):
    """Make a named token."""

    name: str = Field(min_length=1, max_length=63)
    role: TokenRole
    expires_in_s: float | None = Field(default=None, gt=0, le=10 * 366 * 86400)  # None: never
