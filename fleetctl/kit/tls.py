"""The TLS contexts of a process for its HTTP clients: reading the certificates of all authorities takes 50 ms."""

from __future__ import annotations

import functools
import ssl

import httpx

NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For peers on loopback, which speak plain HTTP: it trusts nobody, and no certificates are read."""


@functools.cache
def client_tls() -> ssl.SSLContext:
    """Trusts the known authorities, whatever the environment says. It is shared: change nothing in it."""
    return httpx.create_ssl_context(trust_env=False)
