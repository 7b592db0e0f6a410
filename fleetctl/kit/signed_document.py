"""Documents with an Ed25519 signature (RFC 8032) over their canonical JSON: signed by a key file, verified offline."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fleetctl.kit.errors import BadInputError
from fleetctl.kit.whole_file import write_whole

SIGNATURE, KEY_ID = "signature", "key_id"  # fields of a signed document
_INSTALL = "pip install cryptography"


class SigningKey:
    """A private key, and what others know it by."""

    def __init__(self, private: Any) -> None:
        """`private`: an Ed25519PrivateKey of `cryptography`."""
        from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

        self._private = private
        public = private.public_key()
        self.public_pem: str = public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()
        self.key_id = hashlib.sha256(public.public_bytes(Encoding.Raw, PublicFormat.Raw)).hexdigest()[:16]

    @classmethod
    def opened(cls, path: Path) -> SigningKey:
        """The key of the file; a new one in a new file, for the owner's eyes alone, where there is none.

        Raises BadInputError naming the file when it holds no such key, or can't be read or made.
        """
        try:
            from cryptography.hazmat.primitives import serialization
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        except ImportError as error:
            raise BadInputError(f"{path}: nothing can be signed: {error}", remedy=_INSTALL) from error
        try:
            if path.exists():
                private = serialization.load_pem_private_key(path.read_bytes(), None)
                if not isinstance(private, Ed25519PrivateKey):
                    raise ValueError("no Ed25519 key")
                path.chmod(0o600)
                return cls(private)
            private = Ed25519PrivateKey.generate()
            pem = private.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
            write_whole(path, pem.decode(), is_durable=True)
            return cls(private)
        except (OSError, ValueError, TypeError) as error:
            raise BadInputError(f"{path}: no signing key: {error}", remedy="mend or move the file away") from error

    def sign(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The document with the key's id, and the signature over both."""
        named = {**document, KEY_ID: self.key_id}
        signature = self._private.sign(canonical_json(named))
        return {**named, SIGNATURE: base64.b64encode(signature).decode()}


def why_not_signed(document: Mapping[str, Any], public_pem: str) -> str:
    """Why the document is not as the key's owner signed it; empty when it is.

    Raises BadInputError for a text that is no public Ed25519 key, or without the library.
    """
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key
    except ImportError as error:
        raise BadInputError(f"no signature can be looked at: {error}", remedy=_INSTALL) from error
    try:
        public = load_pem_public_key(public_pem.encode())
        if not isinstance(public, Ed25519PublicKey):
            raise ValueError("not Ed25519")
    except (ValueError, TypeError) as error:
        raise BadInputError(f"no public key: {error}", remedy="give the PEM of GET /v1/receipts/key") from error
    given = document.get(SIGNATURE)
    if not isinstance(given, str) or not given:
        return "it has no signature"
    try:
        public.verify(
            base64.b64decode(given, validate=True),
            canonical_json({name: value for name, value in document.items() if name != SIGNATURE}),
        )
    except (InvalidSignature, binascii.Error, ValueError):
        return "it is not as it was signed, or another key signed it"
    return ""


def canonical_json(document: Mapping[str, Any]) -> bytes:
    """One text for one document: keys in order, no space, ASCII only."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
