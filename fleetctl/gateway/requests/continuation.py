"""How a request goes on at another node: with the object that its node handed off, or with our own account of a stream.

A node of ours tells beside each event which tokens it covers (`engine/node/stream_progress.py`). Those lines are kept
unread. When the node ends without a word they are sent to another one, with the client's body and what the first node
settled: that is all it takes to draw the same tokens from there on. Of streams of other engines the text is kept
(`text_account.py`).
"""

from __future__ import annotations

import hmac
import json
from enum import StrEnum

from fleetctl.gateway.http.event_stream import ProgressLines
from fleetctl.gateway.http.node_client import NodeAnswer
from fleetctl.gateway.nodes.table import Endpoint
from fleetctl.gateway.requests.fates import TRACE_HEADERS, ProxiedRequest
from fleetctl.gateway.requests.model_names import OWN_ENGINE
from fleetctl.gateway.requests.place import Job
from fleetctl.gateway.requests.text_account import TextAccount

CONTINUE_PATH = "/internal/continue"
CONTINUATION_VERSION = 2  # 1 is what nodes hand off
PROGRESS_HEADER = b"x-fleet-progress"
HANDOFF_HEADER = b"x-fleet-handoff"


class Continuance(StrEnum):
    """How another node goes on with a stream."""

    EXACT = "exact"  # with the tokens that the client would have had
    BY_TEXT = "by_text"  # with a new request for what follows the text so far


class StreamAccount:
    """What is kept of one request, so that another node can go on with it. `job` is as it went to the first node.

    `text`: of a stream of an engine that is not ours; None for streams that tell their progress.
    """

    __slots__ = ("_keeps_text", "_resolved", "_tells_all", "job", "lines", "text")

    def __init__(self, job: Job, *, keeps_text: bool = True) -> None:
        """`keeps_text`: streams of other engines may go on by text."""
        self.job = job
        self.lines = ProgressLines()
        self.text: TextAccount | None = None
        self._keeps_text = keeps_text
        self._resolved: str | None = None  # what the first node settled, as it said it
        self._tells_all = True  # every node so far told its progress

    def begin_part(self, answer: NodeAnswer, endpoint: Endpoint) -> ProgressLines | None:
        """Where the lines of this answer go; None when its stream has none."""
        told = answer.header(PROGRESS_HEADER)
        if told is None:
            self._tells_all = False
            if self._keeps_text and self._resolved is None and endpoint.engine not in ("", OWN_ENGINE):
                if self.text is None or self.text.is_empty:
                    self.text = TextAccount(self.job.path, self.job.body, endpoint)
                self.text.begin_part()
            return None
        if self._resolved is None:
            self._resolved = told
            if self.text is not None and self.text.is_empty:  # the client has nothing of another engine's answer
                self.text, self._tells_all = None, True
        return self.lines

    @property
    def can_continue(self) -> bool:
        """Whether another node can go on behind the last event that was passed on."""
        if self.text is not None:
            return self.text.can_continue
        return self._tells_all and self._resolved is not None and not self.lines.is_overfull

    @property
    def how(self) -> Continuance:
        """How it would."""
        return Continuance.EXACT if self.text is None else Continuance.BY_TEXT

    @property
    def is_all_sent(self) -> bool:
        """Whether the client has all of the answer but [DONE]."""
        return self.lines.is_all_sent if self.text is None else self.text.is_finished

    @property
    def num_tokens(self) -> int:
        """Of the answer, that the client has."""
        return self.lines.num_tokens if self.text is None else self.text.num_tokens

    def body(self, request_id: str, elapsed_s: float) -> bytes:
        """The object that another node goes on from. The client's body is in it as it came."""
        assert self._resolved is not None
        head = f'{{"version":{CONTINUATION_VERSION},"request_id":{json.dumps(request_id)},'
        head += f'"path":{json.dumps(self.job.path)},"elapsed_s":{elapsed_s:.3f},'
        tail = f',"resolved":{self._resolved},"progress":{json.dumps(self.lines.text())}}}'
        return b"".join((head.encode(), b'"request":', self.job.body or b"null", tail.encode()))


class Continuations:
    """Makes the jobs with which requests go on. `node_token` opens the nodes' internal routes."""

    def __init__(self, node_token: str) -> None:
        self._node_token = node_token
        self._key = node_token.encode()

    def offers(self, request_id: bytes, *, is_stream: bool) -> list[tuple[bytes, bytes]]:
        """Headers that tell a node what we can do with a request that it can't finish.

        The proof is an HMAC of the request id, so that no other engine, and no log of headers, learns the token.
        """
        offers = [(HANDOFF_HEADER, b"accept")]
        if is_stream:
            offers.append((PROGRESS_HEADER, hmac.digest(self._key, request_id, "sha256").hex().encode()))
        return offers

    def of_handoff(self, handed_off: bytes, account: StreamAccount, proxied: ProxiedRequest) -> Job:
        """With the object that the node sent."""
        return self._job(handed_off, account, proxied)

    def of_account(self, account: StreamAccount, proxied: ProxiedRequest, now: float) -> Job:
        """With what we know of it ourselves: nothing of the node that had it is needed."""
        if account.text is not None:
            return account.job._replace(body=account.text.body(), is_continuation=True)
        return self._job(account.body(proxied.request_id, max(0.0, now - proxied.started)), account, proxied)

    def _job(self, body: bytes, account: StreamAccount, proxied: ProxiedRequest) -> Job:
        source, request_id = account.job, proxied.request_id.encode()
        return source._replace(
            method="POST",
            target=CONTINUE_PATH,
            body=body,
            headers=[
                (b"content-type", b"application/json"),
                (b"authorization", b"Bearer " + self._key),
                (b"x-request-id", request_id),
                *self.offers(request_id, is_stream=source.facts.stream),
                # The rest of the request is part of the same trace.
                *((name, value) for name, value in source.headers if name.lower() in TRACE_HEADERS),
            ],
            is_continuation=True,
        )
