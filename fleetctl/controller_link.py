"""How a controller is reached: the one that leads is found, what is refused for a while is asked again.

What it answers is read here too. Every failure is one of `fleetctl.kit.errors`, with the next thing to do. Which calls
there are: `client.py`.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import cache
from typing import Any, Literal, TypeVar
from urllib.parse import quote

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic_core import from_json

from fleetctl.kit.errors import BadInputError, FleetctlError, RefusedError, UnreachableError
from fleetctl.kit.http_url import is_http_url
from fleetctl.kit.line_feed import lines_of
from fleetctl.wire.base import Problem

DEFAULT_TIMEOUT_S = 10.0
LONG_ANSWER = 200_000  # bytes of a list: 1,000 nodes take 55 ms to read, in which no key would be answered
PART_ROWS = 50
MAX_KNOWN_LISTS = 32
STREAM_SILENT_S = 45.0  # of the event stream, which says every 15 s that it is alive
RETRIES = 3  # of a request that was refused because too many came
MAX_RETRY_S = 10
WAIT_MARGIN_S = 10.0  # how much longer than its wait a long poll may take
T = TypeVar("T")
W = TypeVar("W", bound=BaseModel)

_ERRORS: Mapping[int, type[FleetctlError]] = {
    400: BadInputError,
    403: RefusedError,
    404: BadInputError,
    405: BadInputError,
    409: RefusedError,
    413: BadInputError,
    422: BadInputError,
    429: RefusedError,
    502: UnreachableError,
    503: UnreachableError,
    504: UnreachableError,
}


class ControllerLink:
    """Connections to the controller that leads, of one or several. Raises as `ControllerClient` says."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        timeout: float = DEFAULT_TIMEOUT_S,
        others: Sequence[str] = (),
        *,
        reuses_lists: bool = False,
    ) -> None:
        """As `ControllerClient`'s. `url`: the one that is asked, that of the leader once it is known."""
        self.url = _checked(url)
        self._known = tuple(dict.fromkeys((self.url, *map(_checked, others))))
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout_s = timeout
        self._reuses_lists = reuses_lists
        self._lists: OrderedDict[str, tuple[str, Sequence[Any]]] = OrderedDict()  # tag and rows, by what was asked
        # The controller is reached directly: a proxy from the environment must not see the token.
        # Reading the machine's certificates takes longer than a call: only for what uses them.
        with_tls = any(known.startswith("https://") for known in self._known)
        self._http = httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False, verify=with_tls)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def get(self, model: type[W], path: str) -> W:
        """What is there."""
        return parse(model, await self.send("GET", path))

    async def rows(
        self,
        model: type[W],
        path: str,
        held_s: float = 0.0,
        *,
        limit: int | None = None,
        size: Literal["limit", "newest"] = "limit",
        is_oldest_first: bool = False,
        **params: Any,
    ) -> list[W]:
        """All rows, or `limit` of them, however many answers they take. `is_oldest_first`: of the newest ones, told
        forwards, so that what the next answer has comes before."""
        adapter: TypeAdapter[list[W]] = _list_of(model)
        is_oldest_first = is_oldest_first or size == "newest"
        asked = str(httpx.URL(path, params=given(**{size: limit}, **params)))
        tag, known = self._lists.get(asked, ("", ()))
        headers = {"If-None-Match": tag} if tag else {}
        answer = await self.send("GET", asked, held_s, headers=headers)
        if answer.status_code == httpx.codes.NOT_MODIFIED:
            return list(known)
        tag, is_whole = answer.headers.get("ETag", ""), True
        rows: list[W] = []
        while True:
            is_long = len(answer.content) > LONG_ANSWER
            page = await _parse_in_parts(adapter, answer) if is_long else parse_as(adapter, answer)
            rows = [*page, *rows] if is_oldest_first else [*rows, *page]
            more = answer.links.get("next", {}).get("url", "")
            if not page or not more.startswith(f"{path}?") or (limit is not None and len(rows) >= limit):
                break
            answer, is_whole = await self.send("GET", more, held_s), False
        if limit is not None:
            rows = rows[-limit:] if is_oldest_first else rows[:limit]
        if self._reuses_lists and tag and is_whole:
            self._lists[asked] = tag, tuple(rows)
            self._lists.move_to_end(asked)
            if len(self._lists) > MAX_KNOWN_LISTS:
                self._lists.popitem(last=False)
        return rows

    async def post(self, model: type[W], path: str, body: BaseModel, held_s: float = 0.0) -> W:
        """What became of a request."""
        return parse(model, await self.send("POST", path, held_s, json=body.model_dump(mode="json")))

    async def send(self, method: str, path: str, held_s: float = 0.0, **options: Any) -> httpx.Response:
        """The answer to one request that the controller may hold for `held_s`."""
        timeout = httpx.Timeout(self._timeout_s, read=max(self._timeout_s, held_s + WAIT_MARGIN_S))
        problem: FleetctlError | None = None
        untried = [self.url, *(known for known in self._known if known != self.url)]
        for _ in range(len(untried) + 1):  # and where a standby sent us, if we did not know it
            url = untried.pop(0)
            try:
                response = await self._http.request(method, f"{url}{path}", timeout=timeout, **options)
                for _ in range(RETRIES):  # nothing was done of what is refused so
                    if response.status_code != httpx.codes.TOO_MANY_REQUESTS or not (wait_s := _told_wait_s(response)):
                        break
                    await asyncio.sleep(wait_s)
                    response = await self._http.request(method, f"{url}{path}", timeout=timeout, **options)
            except httpx.HTTPError as error:
                problem = problem or self._unreachable(error, url)
                # What was sent may have been done: only what surely did not arrive, or changes nothing, is asked again.
                if not untried or not (isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) or method == "GET"):
                    raise problem from error
                continue
            if response.status_code == httpx.codes.TEMPORARY_REDIRECT:
                leader = _origin_of(response.headers.get("Location", ""))
                untried = [leader, *(one for one in untried if one != leader)]
            elif response.status_code == httpx.codes.SERVICE_UNAVAILABLE and untried:
                problem = _error_of(response)
            elif not response.is_success and response.status_code != httpx.codes.NOT_MODIFIED:
                raise _error_of(response)
            else:
                self.url = url
                return response
        raise problem or _error_of(response)

    async def followed(self, path: str, last_id: str | None) -> AsyncGenerator[tuple[str, str], None]:
        """Id and data of each event, of the controller that leads."""
        headers = {} if last_id is None else {"Last-Event-ID": last_id}
        event_id = ""
        async with aclosing(self.lines(path, STREAM_SILENT_S, headers=headers)) as told:
            async for line in told:
                if line.startswith("id: "):
                    event_id = line.removeprefix("id: ")
                elif line.startswith("data: "):
                    yield event_id, line.removeprefix("data: ")
                    event_id = ""

    async def lines(
        self,
        path: str,
        silent_s: float | None,
        *,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[str, None]:
        """What one long answer of the controller that leads says, line by line, as it comes. `silent_s`: how long it
        may say nothing; None: for ever."""
        await self.send("GET", "/v1/status")
        patience = httpx.Timeout(self._timeout_s, read=silent_s)
        url = f"{self.url}{path}"
        try:
            async with self._http.stream("GET", url, params=params, headers=headers, timeout=patience) as response:
                if not response.is_success:
                    await response.aread()
                    raise _error_of(response)
                async for line in lines_of(response):
                    yield line
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def _unreachable(self, error: httpx.HTTPError, url: str = "") -> UnreachableError:
        if isinstance(error, httpx.ReadTimeout):  # `fleetctl up` starts nothing beside a process that is there
            return UnreachableError(
                f"no answer from the controller at {url or self.url}: it takes the connection and says nothing, as one "
                "that is stopped or has no CPU; gateways and nodes serve on without it",
                remedy="fleetctl logs controller; where it stays so, end its process, then fleetctl up",
            )
        return UnreachableError(
            f"no answer from the controller at {url or self.url}: {str(error) or type(error).__name__}",
            remedy="fleetctl up, or name another with --controller",
        )


def _checked(url: str) -> str:
    remedy = "give one like http://127.0.0.1:7700"
    try:
        text = str(httpx.URL(url)).rstrip("/")
    except httpx.InvalidURL as error:
        raise BadInputError(f"{url!r} is no URL: {error}", remedy=remedy) from error
    if not is_http_url(url):
        raise BadInputError(f"{url!r} is no HTTP URL", remedy=remedy)
    return text


def _origin_of(location: str) -> str:
    """The controller that a standby names. Raises UnreachableError when it names none."""
    url = httpx.URL(location)
    if url.scheme not in ("http", "https") or not url.host:
        raise UnreachableError(f"a standby sent us to {location[:200]!r}", remedy="name the leader with --controller")
    return str(url.copy_with(raw_path=b"/")).rstrip("/")


def _error_of(response: httpx.Response) -> FleetctlError:
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        # Not our controller, or something between us and it.
        problem = Problem(error=f"{response.url} answered {response.status_code}")
    if response.status_code == 401:
        return FleetctlError(
            f"the controller refused the token: {problem.error}",
            remedy="use the same --state-dir as the controller, or set FLEETCTL_CONTROLLER__TOKEN",
        )
    return _ERRORS.get(response.status_code, FleetctlError)(problem.error, remedy=problem.remedy)


def event_of(model: type[W], data: str) -> W:
    """What an event of a stream says. Raises FleetctlError."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise unknown_event(error) from error


def unknown_event(error: ValidationError) -> FleetctlError:
    """What is wrong with an event that can't be read."""
    return FleetctlError(
        f"an event is not what this fleetctl knows: {error.errors()[0]['msg']}",
        remedy="use the same version of fleetctl as the controller",
    )


def parse(model: type[W], response: httpx.Response) -> W:
    """One model in an answer. Raises FleetctlError."""
    return parse_as(TypeAdapter(model), response)


def parse_as(adapter: TypeAdapter[T], response: httpx.Response) -> T:
    """What an answer says. Raises FleetctlError naming the place that is not as it was expected."""
    try:
        return adapter.validate_json(response.content)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"]) or "answer"
        raise FleetctlError(
            f"{response.url.path}: the answer is not what this fleetctl knows: {place}: {first['msg']}",
            remedy="use the same version of fleetctl as the controller",
        ) from error


@cache
def _list_of(model: type[W]) -> TypeAdapter[list[W]]:
    return TypeAdapter(list[model])  # type: ignore[valid-type]


async def _parse_in_parts(adapter: TypeAdapter[list[W]], response: httpx.Response) -> list[W]:
    """As `parse_as`; whatever else runs in this loop has its turn between the parts."""
    found: list[W] = []
    try:
        rows = from_json(response.content)
        for at in range(0, len(rows), PART_ROWS):
            await asyncio.sleep(0)
            found += adapter.validate_python(rows[at : at + PART_ROWS])
    except (ValueError, TypeError):
        return parse_as(adapter, response)  # which says what is wrong with it
    return found


def _told_wait_s(response: httpx.Response) -> float:
    """How long the controller asks to wait; 0: it does not say, or longer than anybody should sit there."""
    text = response.headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 4 and int(text) <= MAX_RETRY_S else 0.0


def part(name: str) -> str:
    """One segment of a path, whatever a person typed."""
    return quote(name, safe="") or "%20"


def given(**params: Any) -> dict[str, Any]:
    """Those parameters that are."""
    return {name: value for name, value in params.items() if value is not None}
