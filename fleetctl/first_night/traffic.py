"""The night's users: streamed and plain requests through the gateway, each one accounted for, and bursts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fleetctl.load.client import LoadRun, LoadSettings, measure_chars_per_token
from fleetctl.load.generated_shapes import TrafficKind, generate_shapes
from fleetctl.load.request_fate import JudgedFate, RequestFate
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
        """Its user did not get what was asked for, and no refusal said so."""
        return self.fate in LOST_FATES

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

    def __init__(self, gateway_url: str, model: str, *, rate_per_s: float, seed: int) -> None:
        self._url, self._model = gateway_url, model
        self._kind = replace(TRAFFIC, rate_per_s=rate_per_s, seed=seed)
        self._stop = asyncio.Event()
        self._chars_per_token = 4.0
        self._runs: list[LoadRun] = []
        self._bursts: set[asyncio.Task[None]] = set()
        self.seen: list[SeenRequest] = []

    async def send_until_stopped(self) -> None:
        """Send, and return when all that was sent has ended."""
        self._chars_per_token = await measure_chars_per_token(self._url, self._model)
        run = self._new_run(seed=self._kind.seed, plain_every=PLAIN_EVERY, max_in_flight=256)
        await run.send_all(generate_shapes(self._kind), self._stop)
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

        task = asyncio.create_task(send())
        self._bursts.add(task)

    def stop_sending(self) -> None:
        """Send nothing more; `send_until_stopped` returns when what is in flight has ended."""
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
        """Requests that ended as lost in that time."""
        return sum(request.is_lost and since <= request.ended_at <= until for request in self.seen)

    def _new_run(self, *, seed: int, plain_every: int, max_in_flight: int) -> LoadRun:
        settings = LoadSettings(
            url=self._url,
            model=self._model,
            seed=seed,
            max_in_flight=max_in_flight,
            chars_per_token=self._chars_per_token,
            stall_timeout_s=STALL_TIMEOUT_S,
            drain_timeout_s=DRAIN_TIMEOUT_S,
            plain_every=plain_every,
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
