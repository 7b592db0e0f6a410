"""One GET of metrics text: within a time, within a size, or a reason why not."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

import aiohttp

HEADERS = {"Accept": "text/plain;version=0.0.4", "Accept-Encoding": "gzip, identity"}
_BLOCK_BYTES = 256 * 1024


class Fetched(NamedTuple):
    """`text` is None when there is no whole answer; `problem` then says why."""

    text: str | None
    problem: str = ""


class Fetcher:
    """A pool of connections without a limit: a peer that hangs holds its own connection and nobody else's."""

    def __init__(self, *, timeout_s: float, max_bytes: int) -> None:
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._session: aiohttp.ClientSession | None = None

    async def fetch(self, url: str) -> Fetched:
        """The metrics text at `url`. Reads at most `max_bytes`, unpacked, and takes at most `timeout_s`."""
        try:
            # A limit on the whole: a peer that drips bytes must not hold the scrape for ever.
            async with asyncio.timeout(self._timeout_s):
                async with self._opened().get(url, headers=HEADERS, allow_redirects=False) as response:
                    if response.status != 200:
                        return Fetched(None, f"answered {response.status}")
                    return Fetched((await self._body(response)).decode("utf-8"))
        except UnicodeDecodeError:
            return Fetched(None, "not in Prometheus' text format: not UTF-8")
        except TimeoutError:
            return Fetched(None, f"no whole answer within {self._timeout_s:g} s")
        except (aiohttp.ClientError, ValueError, OSError) as error:
            return Fetched(None, str(error) or type(error).__name__)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _body(self, response: aiohttp.ClientResponse) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.content.iter_chunked(_BLOCK_BYTES):
            size += len(part)
            if size > self._max_bytes:
                raise ValueError(f"the answer is longer than {self._max_bytes} bytes")
            parts.append(part)
        return b"".join(parts)

    def _opened(self) -> aiohttp.ClientSession:
        """The session, made when it is first needed: that must be inside the running loop."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=60),
                cookie_jar=aiohttp.DummyCookieJar(),
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session
