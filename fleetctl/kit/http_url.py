"""Whether a text is an HTTP URL that can be asked."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_http_url(url: str) -> bool:
    """Whether it has a scheme, a host and a port that there can be, and no white space."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port  # reading either raises for one that there cannot be
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(host) and not any(c.isspace() for c in url)
