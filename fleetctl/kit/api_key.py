"""Keys that prove who asks: made here, shown once, kept as SHA-256 only.

A key holds 256 random bits, so nobody can guess one from its hash: a salt or a slow hash, which weak passwords need,
would only cost time on each request.
"""

from __future__ import annotations

import hashlib
import re
import secrets

SHOWN_DIGITS = 12
_BEARER = re.compile(rb"[Bb][Ee][Aa][Rr][Ee][Rr] +([\x21-\x7e]+)\Z")


def new_key(prefix: str) -> str:
    """A key that nobody has yet: 256 random bits as text, behind a prefix that says what the key is for."""
    return prefix + secrets.token_urlsafe(32)


def digest_of(key: bytes) -> bytes:
    """The key's SHA-256, 32 bytes: all that is kept of it."""
    return hashlib.sha256(key).digest()


def shown_id(digest: bytes) -> str:
    """The name of a key for people, from its digest: enough to find it in the file, useless to who wants to use it."""
    return digest.hex()[:SHOWN_DIGITS]


def key_of(authorization: bytes | None) -> bytes | None:
    """The key of an `Authorization: Bearer` header (RFC 6750); None when there is none."""
    match = _BEARER.match(authorization) if authorization is not None else None
    return match[1] if match else None
