"""Pages of a list: `limit` rows, and in the `Link` header where those after them are.

A page begins after a row, not at a number: rows that come and go while somebody reads are neither told twice nor make
others be left out. The cursor names that row by what the list is ordered by, and the list that it belongs to.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from fleetctl.controller.http_edge import int_param
from fleetctl.kit.errors import BadInputError
from fleetctl.traffic_rule import TrafficRule
from fleetctl.wire.alert import Alert
from fleetctl.wire.autoscaler import AutoscalerPool
from fleetctl.wire.failure import Failure, FailureGroup
from fleetctl.wire.freeze import Freeze
from fleetctl.wire.gateway import Gateway
from fleetctl.wire.gpu import Gpu
from fleetctl.wire.group import NodeGroup
from fleetctl.wire.identity import TokenInfo
from fleetctl.wire.node import Node
from fleetctl.wire.notification import Receiver
from fleetctl.wire.pool import Pool, Revision
from fleetctl.wire.rollout import Rollout
from fleetctl.wire.routing import RouteSignals
from fleetctl.wire.runbook import RunbookInfo, VerbInfo
from fleetctl.wire.silence import Silence
from fleetctl.wire.tenant import TenantUse

MAX_PAGE = 1000  # rows that one answer has where `limit` asks for more
MAX_ROWS = 10_000  # of an answer to somebody who asks for no page
MAX_CURSOR_CHARS = 1000
MAX_NUMBER = 2**63 - 1

Key = tuple[str | int | float, ...]
M = TypeVar("M", bound=BaseModel)

# How a list that is not in the database is ordered in pages: by what does not change of a row.
_ORDERS: Mapping[type[BaseModel], Callable[[Any], Key]] = {
    Node: lambda row: (row.name,),
    NodeGroup: lambda row: (row.name,),
    Gpu: lambda row: (row.node, row.gpu),
    Failure: lambda row: (-row.at, row.id),
    FailureGroup: lambda row: (row.name,),
    Pool: lambda row: (row.name,),
    AutoscalerPool: lambda row: (row.pool,),
    Revision: lambda row: (-(row.created_at or 0.0), row.id),
    Rollout: lambda row: (-row.started_at, row.id),
    Gateway: lambda row: (row.name,),
    Receiver: lambda row: (row.name,),
    TenantUse: lambda row: (row.tenant,),
    Alert: lambda row: (row.name, row.fingerprint),
    RunbookInfo: lambda row: (row.name,),
    VerbInfo: lambda row: (row.name,),
    RouteSignals: lambda row: (row.node,),
    TrafficRule: lambda row: (row.made_at, row.id),
    Freeze: lambda row: (row.made_at, row.id),
    TokenInfo: lambda row: (row.name, row.created_at, row.id),
    Silence: lambda row: (("active", "pending", "expired").index(row.state), row.ends_at, row.id),
}


@dataclass(frozen=True, slots=True)
class PageAsked:
    """What a request asks for. `after`: the row that the page before ended with; None: the first page."""

    path: str
    query: tuple[tuple[str, str], ...]  # without the cursor
    size: str  # the parameter with the number of rows
    limit: int
    after: Key | None

    @classmethod
    def of(
        cls,
        request: Request,
        kinds: Sequence[type] | None,
        *,
        default: int,
        most: int | None = None,
        size: str = "limit",
    ) -> PageAsked:
        """`kinds`: what a cursor's key is made of; `size`: the parameter that limits. Raises BadInputError."""
        limit = int_param(request, size, default)
        if limit == 0:
            raise BadInputError(f"{size}: expected 1 or more")
        query = tuple((name, text) for name, text in request.query_params.multi_items() if name != "cursor")
        asked = cls(request.url.path, query, size, min(limit, most or MAX_PAGE), None)
        given = request.query_params.get("cursor")
        return asked if given is None else replace(asked, after=_key_of(given, asked.mark, kinds))

    @property
    def mark(self) -> str:
        """Names the list: a cursor of another one, or of other filters, means nothing in it."""
        filters = sorted(pair for pair in self.query if pair[0] != self.size)
        return hashlib.blake2b(json.dumps([self.path, filters]).encode(), digest_size=6).hexdigest()

    def page(self, rows: Sequence[M], order: Callable[[M], Key], *, oldest_first: bool = False) -> Response:
        """The first rows up to the limit, of one more than that if there are more. `oldest_first`: pages go back in
        time, and each is told forwards, so that the next one goes on from its first row."""
        if len(rows) <= self.limit:
            return page_of(rows)
        page = rows[-self.limit :] if oldest_first else rows[: self.limit]
        return page_of(page, self._next_after(order(page[0 if oldest_first else -1])))

    def _next_after(self, key: Key) -> dict[str, str]:
        """The header that says where the rows after this one are."""
        told = json.dumps([self.mark, *key], separators=(",", ":")).encode()
        cursor = base64.urlsafe_b64encode(told).decode().rstrip("=")
        return {"Link": f'<{quote(self.path)}?{urlencode([*self.query, ("cursor", cursor)])}>; rel="next"'}


def listed(request: Request, rows: Sequence[M]) -> Response:
    """The rows as a list; the page of them that is asked for, if one is."""
    is_paged = {"limit", "cursor"} & request.query_params.keys() or len(rows) > MAX_ROWS
    if not is_paged:
        return page_of(rows)
    order = _ORDERS[type(rows[0])] if rows else None
    kinds = [type(one) for one in order(rows[0])] if order else None
    asked = PageAsked.of(
        request, kinds, default=MAX_ROWS, most=MAX_PAGE if "limit" in request.query_params else MAX_ROWS
    )
    if order is None:
        return page_of(rows)
    left = sorted(rows, key=order)
    return asked.page(left if asked.after is None else [row for row in left if order(row) > asked.after], order)


def page_of(rows: Iterable[BaseModel], headers: Mapping[str, str] | None = None) -> Response:
    """The rows as JSON; with `headers`, where more of them are."""
    text = "[" + ",".join(row.model_dump_json() for row in rows) + "]"
    return Response(text, media_type="application/json", headers=headers)


def _key_of(cursor: str, mark: str, kinds: Sequence[type] | None) -> Key:
    """`kinds`: None, of a list that has no rows now. Raises BadInputError for what no page's header said."""
    wrong = BadInputError("cursor: not one of this list", remedy="begin without a cursor, and follow the Link header")
    if len(cursor) > MAX_CURSOR_CHARS or not cursor.isascii():
        raise wrong
    try:
        told = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except ValueError:
        raise wrong from None
    if not isinstance(told, list) or len(told) < 2 or told[0] != mark:
        raise wrong
    key = tuple(told[1:])
    if kinds is None:
        return key
    if len(key) != len(kinds):
        raise wrong
    if not all(_fits(value, kind) for value, kind in zip(key, kinds, strict=True)):
        raise wrong
    return key


def _fits(value: object, kind: type) -> bool:
    if kind is str:
        return isinstance(value, str) and "\x00" not in value and not any("\ud800" <= one <= "\udfff" for one in value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return (kind is float or isinstance(value, int)) and math.isfinite(value) and abs(value) <= MAX_NUMBER
