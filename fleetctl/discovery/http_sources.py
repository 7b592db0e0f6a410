"""Targets that a server tells: a URL that answers with target groups, and the targets of a Prometheus."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import httpx

from alerts.matcher import compile_go
from fleetctl.discovery.source import ADDRESS, SourceError, Target, targets_of
from fleetctl.kit.errors import BadInputError
from fleetctl.kit.http_body import read_limited
from fleetctl.kit.tls import NO_TLS
from fleetctl.settings.remote import RemoteServer
from fleetctl.settings.targets import MAX_TARGETS, HttpTargets, PrometheusTargets

LIMIT_S = 10.0
MAX_ANSWER_BYTES = 64 * 1024 * 1024


class HttpSource:
    """A URL that answers with what a file of targets holds."""

    def __init__(self, settings: HttpTargets) -> None:
        self._settings = settings
        self.name = f"http {settings.url}"
        self.interval_s = settings.refresh_interval

    async def read(self) -> Sequence[Target]:
        """As it answers now. Raises SourceError."""
        return targets_of(await _get_json(self._settings, self._settings.url), self.name)


class PrometheusSource:
    """The targets that a Prometheus scrapes, with their labels there and those before its relabelling."""

    def __init__(self, settings: PrometheusTargets) -> None:
        self._settings = settings
        self._job = compile_go(settings.job)
        self.name = f"prometheus {settings.url}"
        self.interval_s = settings.refresh_interval

    async def read(self) -> Sequence[Target]:
        """Its active targets. Raises SourceError."""
        answer = await _get_json(self._settings, f"{self._settings.url}/api/v1/targets?state=active")
        try:
            active = [one for one in answer["data"]["activeTargets"] if self._job.fullmatch(one["labels"]["job"])]
            found = [_target_of(one) for one in active]
        except (KeyError, TypeError) as error:
            raise SourceError(f"{self.name}: its answer is no list of targets") from error
        if len(found) > MAX_TARGETS:
            raise SourceError(f"{self.name}: lists more than {MAX_TARGETS} targets")
        return found


def _target_of(one: dict[str, Any]) -> Target:
    """Labels as Prometheus left them; `__meta_` ones as they were before, for our own relabelling."""
    before = {name: value for name, value in one["discoveredLabels"].items() if name.startswith("__meta_")}
    url = httpx.URL(one["scrapeUrl"])
    scheme = {"__scheme__": url.scheme, "__metrics_path__": url.raw_path.decode("ascii", "replace")}
    host = f"[{url.host}]" if ":" in url.host else url.host
    address = f"{host}:{url.port or (443 if url.scheme == 'https' else 80)}"
    return Target({**before, **one["labels"], **scheme, ADDRESS: address})


async def _get_json(server: RemoteServer, url: str) -> Any:
    try:
        token, basic = server.token(), server.basic()
        verify = server.tls() or NO_TLS
    except (BadInputError, OSError) as error:
        raise SourceError(f"{url}: {error}") from error
    headers = {"Accept": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    try:
        async with httpx.AsyncClient(
            trust_env=False, verify=verify, timeout=LIMIT_S, auth=basic, follow_redirects=True
        ) as client:
            async with client.stream("GET", url, headers=headers) as response:
                body = await read_limited(response, MAX_ANSWER_BYTES)
                if body is None:
                    raise SourceError(f"{url}: the answer is longer than {MAX_ANSWER_BYTES >> 20} MiB")
        if response.status_code != 200:
            raise SourceError(f"{url}: answered {response.status_code}")
        return json.loads(body)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise SourceError(f"{url}: {error or type(error).__name__}") from error
    except ValueError as error:
        raise SourceError(f"{url}: the answer is not JSON") from error
