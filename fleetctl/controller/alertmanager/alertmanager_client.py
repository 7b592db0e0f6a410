"""One Alertmanager's API v2, as far as we use it. Knows nothing of queues, incidents or policy."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from fleetctl.kit.errors import BadInputError, FleetctlError, UnreachableError
from fleetctl.kit.http_body import read_limited
from fleetctl.kit.tls import client_tls
from fleetctl.settings.alertmanager import AlertmanagerPeer

MAX_ANSWER_BYTES = 32 * 1024 * 1024
MAX_TOLD_CHARS = 300


class AlertmanagerClient:
    """Raises from every method: UnreachableError (no answer, 5xx, 401, anything a later try may mend) and BadInputError
    (Alertmanager refused what was sent). Messages hold no secret."""

    def __init__(self, peer: AlertmanagerPeer) -> None:
        """Raises BadInputError when a certificate file can't be used."""
        self.url = peer.url
        self._peer = peer
        self._http = httpx.AsyncClient(verify=peer.tls() or client_tls(), timeout=peer.timeout_s, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def post_alerts(self, alerts: Sequence[Mapping[str, Any]]) -> None:
        """BadInputError means that some were invalid: Alertmanager has taken the others."""
        await self._ask("POST", "/alerts", alerts)

    async def firing(self) -> set[str]:
        """Fingerprints of all alerts that fire there, silenced and inhibited ones too."""
        found = await self._ask("GET", "/alerts?active=true&silenced=true&inhibited=true&unprocessed=true")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise UnreachableError(f"{self.url}: the answer to /alerts is no list of alerts")
        return {str(one.get("fingerprint")) for one in found}

    async def silences(self) -> list[dict[str, Any]]:
        """All that it still remembers, also expired ones."""
        found = await self._ask("GET", "/silences")
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise UnreachableError(f"{self.url}: the answer to /silences is no list of silences")
        return found

    async def silence(self, silence_id: str) -> dict[str, Any] | None:
        """One silence; None when it knows none of this id."""
        try:
            found = await self._ask("GET", f"/silence/{quote(silence_id, safe='')}")
        except _NotFoundError:
            return None
        return found if isinstance(found, dict) else None

    async def add_silence(self, silence: Mapping[str, Any]) -> str:
        """Returns the new silence's id."""
        answer = await self._ask("POST", "/silences", silence)
        if not isinstance(answer, dict) or not isinstance(answer.get("silenceID"), str):
            raise UnreachableError(f"{self.url}: the answer to a new silence has no silenceID")
        return str(answer["silenceID"])

    async def expire(self, silence_id: str) -> None:
        """End a silence. Raises as `silences` does."""
        await self._ask("DELETE", f"/silence/{quote(silence_id, safe='')}")

    async def _ask(self, method: str, path: str, body: Any = None) -> Any:
        try:
            token, basic = self._peer.token(), self._peer.basic()
        except BadInputError as error:  # a file that may be there again the next time
            raise UnreachableError(error.message) from None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        request = self._http.build_request(method, f"{self.url}/api/v2{path}", json=body, headers=headers)
        try:
            response = await self._http.send(request, auth=basic or httpx.USE_CLIENT_DEFAULT, stream=True)
            try:
                content = await read_limited(response, MAX_ANSWER_BYTES)
            finally:
                await response.aclose()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnreachableError(f"{self.url}: {str(error) or type(error).__name__}") from None
        if content is None:
            raise UnreachableError(f"{self.url}: the answer is larger than {MAX_ANSWER_BYTES} bytes")
        if not response.is_success:
            raise _error(self.url, response.status_code, content)
        try:
            return json.loads(content) if content.strip() else None
        except (ValueError, RecursionError):
            raise UnreachableError(f"{self.url}: the answer is not JSON: is this an Alertmanager?") from None


class _NotFoundError(UnreachableError):
    """No such silence; or no such API at this URL."""


def _error(url: str, status: int, content: bytes) -> FleetctlError:
    text = " ".join(content[:2000].decode("utf-8", "replace").split())[:MAX_TOLD_CHARS].strip('"')
    told = f"{url} answered {status}" + (f": {text}" if text else "")
    if status == 404:
        return _NotFoundError(told)
    return (BadInputError if status in (400, 413, 422) else UnreachableError)(told)
