"""Named tokens: made, listed, revoked, and matched with what a caller sends. Only their SHA-256 is stored."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import sqlalchemy as sa

from fleetctl.controller.access.identity import ForbiddenError, Identity
from fleetctl.controller.records import Records
from fleetctl.controller.tables import tokens
from fleetctl.kit.api_key import digest_of, new_key, shown_id
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.identity import TOKEN_PREFIX, MadeToken, TokenInfo, TokenRequest, TokenRole

ADMIN = "admin"
"""The name of whoever holds the state folder's controller.token."""

OWN_TOKEN, NAMED_TOKEN, LOOPBACK = "controller.token", "token", "loopback"  # what the audit calls these credentials
LOCAL = Identity("local", TokenRole.VIEWER, LOOPBACK)
"""Whoever reads from this machine without a token."""

MAX_TOKENS = 1000
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
RESERVED = frozenset(
    {ADMIN, LOCAL.name, "api", "automation", "autoscaler", "controller", "executor", "pools", "webhook"}
)


@dataclass(frozen=True, slots=True)
class NamedToken:
    """A token as it is stored. Times in Unix seconds."""

    name: str
    role: TokenRole
    digest: bytes
    created_at: float
    created_by: str
    expires_at: float | None = None
    revoked_at: float | None = None
    revoked_by: str = ""
    last_used_at: float | None = None

    def why_void(self, now: float) -> str:
        """Why it opens nothing any more; empty when it does."""
        if self.revoked_at is not None:
            return f"the token of {self.name} was revoked by {self.revoked_by}"
        if self.expires_at is not None and now >= self.expires_at:
            return f"the token of {self.name} has expired"
        return ""


class Tokens:
    """Owner of the table, which is read again in each turn of a loop: another controller may have changed it."""

    def __init__(self, records: Records, admin_token: str, stored: Iterable[NamedToken] = ()) -> None:
        """`admin_token` is the state folder's own: it is an admin's, and in no table."""
        self._records = records
        self._admin_digest = digest_of(admin_token.encode())
        self._by_digest = {token.digest: token for token in stored}
        self._used_at: dict[str, float] = {}  # by name; not stored yet

    @classmethod
    async def opened(cls, records: Records, admin_token: str) -> Tokens:
        """The tokens as the database has them."""
        return cls(records, admin_token, await records.database.read(list_tokens))

    def identify(self, key: bytes) -> Identity | None:
        """Whose key it is; None for a wrong, a revoked and an expired one."""
        digest = digest_of(key)
        if digest == self._admin_digest:
            return Identity(ADMIN, TokenRole.ADMIN, OWN_TOKEN)
        token, now = self._by_digest.get(digest), self._records.clock.now()
        if token is None or token.why_void(now):
            return None
        self._used_at[token.name] = now
        return Identity(token.name, token.role, NAMED_TOKEN)

    def why_refused(self, key: bytes) -> str:
        """What is wrong with a key that nobody is identified by."""
        token = self._by_digest.get(digest_of(key))
        return token.why_void(self._records.clock.now()) if token is not None else "the token is wrong"

    def require(self, identity: Identity, role: TokenRole) -> None:
        """Raises ForbiddenError, which says what is needed and who has it."""
        if identity.role.includes(role):
            return
        able = [f"{token.name} ({token.role.value})" for token in self.valid() if token.role.includes(role)]
        raise ForbiddenError(
            f"{identity.name} has the role {identity.role.value}; this needs {role.value}",
            remedy=f"ask {', '.join([*able[:5], 'whoever has controller.token (admin)'])}",
        )

    def valid(self) -> list[NamedToken]:
        """Those that open something, by name."""
        now = self._records.clock.now()
        return sorted(
            (token for token in self._by_digest.values() if not token.why_void(now)), key=lambda token: token.name
        )

    def listing(self) -> list[TokenInfo]:
        """All that were ever made, by name, without the tokens."""
        ordered = sorted(self._by_digest.values(), key=lambda token: (token.name, token.created_at))
        return [self._info(token) for token in ordered]

    async def create(self, request: TokenRequest, by: str) -> MadeToken:
        """A new token, which is told this once. Raises BadInputError for a name that can't be, or is, used."""
        if not NAME.fullmatch(request.name) or request.name in RESERVED:
            raise BadInputError(
                f"{request.name[:80]!r} is not a name for a token",
                remedy=f"use a-z, 0-9 and . _ - (at most 63), and none of {', '.join(sorted(RESERVED))}",
            )
        now = self._records.clock.now()
        key = new_key(TOKEN_PREFIX)
        token = NamedToken(
            name=request.name,
            role=request.role,
            digest=digest_of(key.encode()),
            created_at=now,
            created_by=by,
            expires_at=None if request.expires_in_s is None else now + request.expires_in_s,
        )

        def work(connection: sa.Connection) -> list[NamedToken]:
            known = list_tokens(connection)
            if any(one.name == token.name and not one.why_void(now) for one in known):
                raise BadInputError(
                    f"there is a token of {token.name} already", remedy=f"fleetctl token revoke {token.name}"
                )
            if len(known) >= MAX_TOKENS:
                # The oldest that opens nothing any more makes room: its row in the audit stays.
                void = [one for one in known if one.why_void(now)]
                if not void:
                    raise BadInputError(f"there are {MAX_TOKENS} tokens", remedy="fleetctl token revoke NAME")
                oldest = min(void, key=lambda one: one.created_at)
                connection.execute(sa.delete(tokens).where(tokens.c.sha256 == oldest.digest.hex()))
            connection.execute(sa.insert(tokens).values(**_row(token)))
            return list_tokens(connection)

        self._take(await self._records.database.write(work))
        await self._tell("created", f"token of {token.name}, {token.role.value}, made by {by}")
        return MadeToken(**self._info(token).model_dump(), token=key)

    async def revoke(self, name: str, by: str) -> TokenInfo:
        """End the token of this name now. Raises BadInputError when there is none that opens something."""
        now = self._records.clock.now()

        def work(connection: sa.Connection) -> list[NamedToken]:
            known = {one.name: one for one in list_tokens(connection) if not one.why_void(now)}
            if name not in known:
                names = ", ".join(sorted(known)) or "none"
                raise BadInputError(f"there is no token of {name[:100]!r}; tokens: {names}")
            ended = sa.update(tokens).where(tokens.c.sha256 == known[name].digest.hex())
            connection.execute(ended.values(revoked_at=now, revoked_by=by))
            return list_tokens(connection)

        self._take(await self._records.database.write(work))
        await self._tell("revoked", f"token of {name} revoked by {by}")
        return next(info for info in self.listing() if info.name == name and info.revoked_at == now)

    async def refresh(self) -> None:
        """Store when tokens were used, and read what another controller changed. One turn of a loop."""
        used, self._used_at = self._used_at, {}

        def work(connection: sa.Connection) -> list[NamedToken]:
            for name, at in used.items():
                held = tokens.c.name == name, tokens.c.revoked_at.is_(None)
                connection.execute(sa.update(tokens).where(*held).values(last_used_at=at))
            return list_tokens(connection)

        do = self._records.database.write if used else self._records.database.read
        self._take(await do(work))

    def _take(self, stored: Iterable[NamedToken]) -> None:
        self._by_digest = {token.digest: token for token in stored}
        valid = self.valid()
        for role in TokenRole:
            self._records.metrics.tokens.labels(role=role.value).set(sum(token.role is role for token in valid))

    def _info(self, token: NamedToken) -> TokenInfo:
        return TokenInfo(
            name=token.name,
            role=token.role,
            id=shown_id(token.digest),
            is_valid=not token.why_void(self._records.clock.now()),
            created_at=token.created_at,
            created_by=token.created_by,
            expires_at=token.expires_at,
            revoked_at=token.revoked_at,
            revoked_by=token.revoked_by,
            last_used_at=self._used_at.get(token.name, token.last_used_at),
        )

    async def _tell(self, what: str, text: str) -> None:
        await self._records.timeline.append(f"token.{what}", text)


def list_tokens(connection: sa.Connection) -> list[NamedToken]:
    """All that are stored, the oldest first."""
    rows = connection.execute(sa.select(tokens).order_by(tokens.c.created_at, tokens.c.name)).mappings()
    return [_token(dict(row)) for row in rows]


def _token(row: dict[str, object]) -> NamedToken:
    fields = {**row, "digest": bytes.fromhex(str(row.pop("sha256"))), "role": TokenRole(str(row["role"]))}
    fields.pop("sha256", None)
    return NamedToken(**fields)  # type: ignore[arg-type]


def _row(token: NamedToken) -> dict[str, object]:
    fields = {column.name: getattr(token, column.name) for column in tokens.columns if column.name != "sha256"}
    return {**fields, "role": token.role.value, "sha256": token.digest.hex()}
