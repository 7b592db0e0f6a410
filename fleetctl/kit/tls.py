"""The one TLS context of a process for its HTTP clients: reading the certificates of all authorities takes 50 ms."""

from __future__ import annotations

import functools
import ssl

import httpx


@functools.cache
def client_tls() -> ssl.SSLContext:
    """Trusts the known authorities, whatever the environment says. It is shared: change nothing in it."""
    return httpx.create_ssl_context(trust_env=False)
