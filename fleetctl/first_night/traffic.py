"""The night's users: streamed and plain requests through the gateway, each one accounted for, and bursts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from fleetctl.first_night.impatient_users import HUNG_UP, ImpatientUsers
from fleetctl.load.client import LoadRun, LoadSettings, measure_chars_per_token
from fleetctl.load.generated_shapes import TrafficKind, generate_shapes
from fleetctl.load.request_fate import GAVE_UP, JudgedFate, RequestFate
from fleetctl.load.shape import RequestShape
from fleetctl.load.streamed_answer import StreamedAnswer

TRAFFIC = TrafficKind(
    rate_per_s=2.0,
    output_tokens_median=32,
    output_sigma=1.2,  # a long tail: some are under way when a node dies
    max_prompt_tokens=512,
    max_output_tokens=400,
    num_system_prompts=12,  # requests go where their beginning is cached: each node must have some
    system_prompt_tokens=384,  # most of a prompt is shared: a lost prefix cache shows
)
NIGHTS_OWN: Mapping[str, Any] = MappingProxyType({})
PLAIN_EVERY = 4  # of four requests one asks for its answer in one piece
STALL_TIMEOUT_S = 120.0  # a user gives up when nothing came for so long
DRAIN_TIMEOUT_S = 150.0
WAITED_TOO_LONG_S = 30.0  # for the first token
LOST_FATES = (RequestFate.LOST, RequestFate.DUPLICATED, RequestFate.ABANDONED)


@dataclass(frozen=True, slots=True)
class SeenRequest:
    """One request as its client saw it. Times are Unix seconds."""

    sent_at: float
    ended_at: float
    fate: RequestFate
    reason: str
    ttft_s: float | None

    @property
    def is_lost(self) -> bool:
        """Its user did not get what was asked for, did not hang up, and no refusal said so."""
        return self.fate in LOST_FATES and self.reason != HUNG_UP

    @property
    def has_waited(self) -> bool:
        """No first token for too long. Of a plain answer that came, nobody can say."""
        if self.ttft_s is None:
            return self.is_lost and self.ended_at - self.sent_at > WAITED_TOO_LONG_S
        return self.ttft_s > WAITED_TOO_LONG_S


@dataclass(frozen=True, slots=True)
class FateCounts:
    """Requests from the fault on, by fate. `waited` of them had no first token for more than 30 s."""

    sent: int = 0
    finished: int = 0
    moved: int = 0  # of all: went on at another node
    refused: int = 0
    lost: int = 0  # also what was answered twice, or was not whole after a move
    lost_begun: int = 0  # of the lost: streams whose first token had come
    waited: int = 0
    reasons: dict[str, int] | None = None  # why they were refused or lost


class DrillTraffic:
    """Sends steadily from `send_until_stopped` until `stop_sending`; bursts come on top."""

    def __init__(
        self,
        gateway_url: str,
        model: str,
        *,
        rate_per_s: float,
        seed: int,
        api_key: str | None = None,
        kind: Mapping[str, Any] = NIGHTS_OWN,
    ) -> None:
        """`kind`: what the users send in another way than `TRAFFIC`."""
        self._url, self._model, self._key = gateway_url, model, api_key
        self._kind = replace(TRAFFIC, rate_per_s=rate_per_s, seed=seed, **kind)
        self._stop = asyncio.Event()
        self._chars_per_token = 4.0
        self._runs: list[LoadRun] = []
        self._bursts: set[asyncio.Task[None]] = set()
        self._end_flows = asyncio.Event()
        self._usual = self._kind
        self.seen: list[SeenRequest] = []

    @property
    def rate_per_s(self) -> float:
        """Of the steady traffic, in requests a second."""
        return self._kind.rate_per_s

    async def send_until_stopped(self) -> None:
        """Send, and return when all that was sent has ended."""
        self._chars_per_token = await measure_chars_per_token(self._url, self._model, self._key)
        run = self._new_run(seed=self._kind.seed, plain_every=PLAIN_EVERY, max_in_flight=256)
        await run.send_all(self._steady_shapes(), self._stop)
        if self._bursts:
            await asyncio.wait(self._bursts)

    def send_burst(self, count: int, *, prompt_tokens: int, output_tokens: int) -> None:
        """Send so many requests at once, beside the steady ones."""
        run = self._new_run(seed=self._kind.seed + 1 + len(self._runs), plain_every=0, max_in_flight=count)

        def shapes() -> Iterator[RequestShape]:
            for _ in range(count):
                yield RequestShape(0.0, prompt_tokens, output_tokens)

        async def send() -> None:
            await run.send_all(shapes(), asyncio.Event())

        self._bursts.add(asyncio.create_task(send()))

    def change_kind(self, **changes: Any) -> None:
        """From now on the steady traffic is of another kind; without changes, as it was at first."""
        self._kind = replace(self._usual, **changes)

    def send_impatient(self, kind: TrafficKind, *, patience_s: float, tries: int = 1) -> None:
        """Beside the steady traffic, users who hang up after so long and ask again, until `end_flows`."""
        users = ImpatientUsers(self._url, self._model, patience_s, tries, self._chars_per_token)

        async def send() -> None:
            await users.send_until(generate_shapes(kind), self._end_flows)
            self.seen += [
                SeenRequest(at, ended, RequestFate.ABANDONED if hung_up else RequestFate.FINISHED, HUNG_UP, None)
                for at, ended, hung_up in users.ended
            ]

        self._bursts.add(asyncio.create_task(send()))

    def send_beside(self, changes: Mapping[str, Any], *, api_key: str | None = None, salts_each: bool = False) -> None:
        """Beside the steady traffic, more of its kind with these changes, until `end_flows`.

        `api_key`: another tenant's. `salts_each`: each request keeps its cache to itself.
        """
        run = self._new_run(
            seed=self._kind.seed + 1 + len(self._runs),
            plain_every=0,
            max_in_flight=256,
            api_key=api_key,
            salts_each=salts_each,
        )
        shapes = generate_shapes(replace(self._usual, seed=self._kind.seed + 1, **changes))
        ended = self._end_flows

        async def send() -> None:
            await run.send_all(shapes, ended)

        self._bursts.add(asyncio.create_task(send()))

    def end_flows(self) -> None:
        """End what was sent beside the steady traffic, which is of its usual kind again."""
        self._end_flows.set()
        self._end_flows = asyncio.Event()
        self.change_kind()

    def _steady_shapes(self) -> Iterator[RequestShape]:
        """Of the kind in force; a changed one begins with the next request."""
        at_s = 0.0
        while True:
            kind, since_s = self._kind, at_s
            for shape in generate_shapes(kind):
                if self._kind is not kind:
                    break
                at_s = since_s + shape.at_s
                yield replace(shape, at_s=at_s)

    def stop_sending(self) -> None:
        """Send nothing more; `send_until_stopped` returns when what is in flight has ended."""
        self._end_flows.set()
        self._stop.set()

    async def account(self, since: float) -> FateCounts:
        """Requests that ended after `since`. Moved ones are sent again undisturbed, and must have got the same."""
        reports = [await run.verify_moved(max_requests=20) for run in self._runs]
        differing = sum(report.reasons.get(name, 0) for report in reports for name in DIFFERS)
        ended = [request for request in self.seen if request.ended_at >= since]
        reasons: dict[str, int] = {}
        for request in ended:
            if request.reason:
                reasons[request.reason] = reasons.get(request.reason, 0) + 1
        fates = [request.fate for request in ended]
        return FateCounts(
            sent=len(ended),
            finished=fates.count(RequestFate.FINISHED) - differing,
            moved=sum(report.moved for report in reports),
            refused=fates.count(RequestFate.REFUSED),
            lost=sum(request.is_lost for request in ended) + differing,
            lost_begun=sum(request.is_lost and request.ttft_s is not None for request in ended),
            waited=sum(request.has_waited for request in ended),
            reasons=reasons,
        )

    def lost_between(self, since: float, until: float) -> int:
        """Requests that ended as lost in that time, without users who gave up: to a gateway they are clients gone."""
        lost = (one for one in self.seen if one.is_lost and one.reason != GAVE_UP)
        return sum(since <= one.ended_at <= until for one in lost)

    def _new_run(
        self,
        *,
        seed: int,
        plain_every: int,
        max_in_flight: int,
        api_key: str | None = None,
        salts_each: bool = False,
    ) -> LoadRun:
        settings = LoadSettings(
            url=self._url,
            model=self._model,
            seed=seed,
            max_in_flight=max_in_flight,
            chars_per_token=self._chars_per_token,
            stall_timeout_s=STALL_TIMEOUT_S,
            drain_timeout_s=DRAIN_TIMEOUT_S,
            plain_every=plain_every,
            api_key=api_key or self._key,
            salts_each=salts_each,
        )
        run = LoadRun(settings, on_answer=self._note)
        self._runs.append(run)
        return run

    def _note(self, answer: StreamedAnswer, judged: JudgedFate) -> None:
        to_wall = time.time() - time.monotonic()
        ended = answer.ended_at if answer.ended_at is not None else time.monotonic()
        self.seen.append(
            SeenRequest(answer.sent_at + to_wall, ended + to_wall, judged.fate, judged.reason, answer.ttft_s)
        )


DIFFERS = ("differs_after_move", "repeated_after_move")
