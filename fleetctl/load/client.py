"""Drives real streamed traffic through a gateway, open loop, and keeps a ledger of each request's fate."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import aiohttp
import structlog

from fleetctl.load.ledger import Report, RequestLedger
from fleetctl.load.prompt import CHARS_PER_TOKEN, prompt_text
from fleetctl.load.request_fate import JudgedFate, RequestFate, compare, judge
from fleetctl.load.shape import RequestShape
from fleetctl.load.streamed_answer import EventLines, StreamedAnswer

log = structlog.get_logger()

CHAT_PATH = "/v1/chat/completions"
PLAIN_TYPE = "application/json"
CONNECT_TIMEOUT_S = 5.0
LOOKUP_TIMEOUT_S = 5.0
MAX_REMEMBERED = 10_000  # moved requests kept for verification
CALIBRATION_TOKENS = 400
VERIFY_TRIES = 3  # of a request that is refused, while a fleet is busy
VERIFY_PAUSE_S = 0.2


class CalibrationError(Exception):
    """The gateway gave no usable answer to the first request."""


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """Where and how traffic is sent. Every request asks for exactly its shape's output tokens.

    `is_exact` False: of a server that knows OpenAI's fields alone; then it asks for at most so many, and what became of
    a request is judged by its end.
    """

    url: str  # of the gateway
    model: str
    temperature: float = 1.0
    seed: int = 0
    max_in_flight: int = 64  # arrivals beyond it are held back and counted, not queued
    chars_per_token: float = CHARS_PER_TOKEN
    stall_timeout_s: float = 120.0  # a stream without news for so long is lost
    drain_timeout_s: float = 120.0  # after the stop, for what is in flight
    plain_every: int = 0  # each n-th request asks for its answer in one piece; 0: all are streamed
    api_key: str | None = None  # of a tenant
    is_exact: bool = True
    salts_each: bool = False  # each request has a cache salt of its own, as where it is the user's name


@dataclass(frozen=True, slots=True)
class _Sent:
    """A moved request that finished: enough to run it again."""

    request_id: str
    shape: RequestShape
    number: int
    answer: StreamedAnswer


class LoadRun:
    """One run of traffic. `run` once; `report` at any time; `verify_moved` after the run."""

    def __init__(
        self,
        settings: LoadSettings,
        *,
        clock: Callable[[], float] = time.monotonic,
        on_answer: Callable[[StreamedAnswer, JudgedFate], None] | None = None,
    ) -> None:
        """`on_answer` sees each answer and its fate when the request has ended."""
        self._settings = settings
        self._clock = clock
        self._on_answer = on_answer
        self._url = settings.url.rstrip("/")
        self._name = f"load-{secrets.token_hex(4)}"
        self._ledger = RequestLedger()
        self._moved: list[_Sent] = []
        self._started: float | None = None
        self._ended: float | None = None

    def report(self) -> Report:
        """The numbers so far."""
        if self._started is None:
            return self._ledger.report(0.0)
        return self._ledger.report((self._ended or self._clock()) - self._started)

    async def send_all(self, shapes: Iterable[RequestShape], stop: asyncio.Event) -> Report:
        """Send each shape at its time until the shapes or `stop` end it; then wait for what is in flight.

        Cancelling it hangs up on every request and leaves no task behind.
        """
        self._started = self._clock()
        tasks: set[asyncio.Task[None]] = set()
        async with self._session() as session:
            try:
                for number, shape in enumerate(shapes):
                    if await is_set_within(stop, self._started + shape.at_s - self._clock()):
                        break
                    if len(tasks) >= self._settings.max_in_flight:
                        self._ledger.held_back += 1
                        continue
                    task = asyncio.create_task(self._request(session, shape, number))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                if tasks:
                    await asyncio.wait(tasks, timeout=self._settings.drain_timeout_s)
            finally:
                left = list(tasks)
                for task in left:
                    task.cancel()
                await asyncio.gather(*left, return_exceptions=True)
                self._ended = self._clock()
                self._ledger.check_integrity()
        return self.report()

    async def verify_moved(self, *, max_requests: int | None = None) -> Report:
        """Run moved requests again with their seeds and compare text and tokens exactly; books what differs."""
        chosen = self._moved if max_requests is None else self._moved[:max_requests]
        self._moved = self._moved[len(chosen) :]
        gate = asyncio.Semaphore(max(1, min(8, self._settings.max_in_flight)))
        async with self._session() as session, asyncio.TaskGroup() as group:
            for sent in chosen:
                group.create_task(self._verify(session, sent, gate))
        self._ledger.check_integrity()
        return self.report()

    def _session(self) -> aiohttp.ClientSession:
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=self._settings.stall_timeout_s
            ),
        )

    async def _request(self, session: aiohttp.ClientSession, shape: RequestShape, number: int) -> None:
        """Send one request and book its fate, whatever happens."""
        request_id = f"{self._name}-{number}"
        answer = StreamedAnswer(sent_at=self._clock())
        judged = JudgedFate(RequestFate.ABANDONED, "stopped")
        self._ledger.book_sent(request_id)
        try:
            await self._exchange(session, request_id, self._body(shape, number), answer)
            judged = judge(answer, shape.output_tokens, is_exact=self._settings.is_exact)
            if self._settings.is_exact:
                judged = await self._look_up(session, request_id, shape, number, answer, judged)
        finally:
            self._ledger.book_end(request_id, judged, answer)
            if self._on_answer is not None:
                self._on_answer(answer, judged)
            if judged.fate in (RequestFate.LOST, RequestFate.DUPLICATED):
                log.warning(
                    "request.went_wrong",
                    request_id=request_id,
                    fate=judged.fate.value,
                    reason=judged.reason,
                    error=answer.error,
                    tokens=answer.num_tokens,
                    asked=shape.output_tokens,
                )

    async def _exchange(
        self, session: aiohttp.ClientSession, request_id: str, body: bytes, answer: StreamedAnswer
    ) -> None:
        """Send the body and read the stream into `answer`, until its end or until it breaks."""
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        if self._settings.api_key is not None:
            headers["Authorization"] = f"Bearer {self._settings.api_key}"
        events = EventLines()
        try:
            async with session.post(self._url + CHAT_PATH, data=body, headers=headers) as response:
                answer.status = response.status
                if response.status == 200 and response.content_type == PLAIN_TYPE:
                    answer.take_plain(await response.read(), self._clock())
                while data := await response.content.readany():
                    if response.status == 200:
                        for event in events.events_in(data):
                            answer.take_event(event, self._clock())
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            answer.error = type(error).__name__
        answer.ended_at = self._clock()

    async def _look_up(
        self,
        session: aiohttp.ClientSession,
        request_id: str,
        shape: RequestShape,
        number: int,
        answer: StreamedAnswer,
        judged: JudgedFate,
    ) -> JudgedFate:
        """Ask the gateway whether the request moved, and whether a refusal was one."""
        if answer.status is None:
            return judged
        fate = await self._gateway_fate(session, request_id)
        if fate is None:
            self._ledger.move_unknown += 1
            return judged
        if judged.fate is RequestFate.REFUSED and fate.get("fate") == "failed":
            # A node had taken it: for the client that is a loss, however politely it was told.
            judged = JudgedFate(RequestFate.LOST, "failed_after_start")
        if fate.get("moved"):
            self._ledger.moved += 1
            if judged.fate is RequestFate.FINISHED:
                self._ledger.moved_finished += 1
                if len(self._moved) < MAX_REMEMBERED:
                    self._moved.append(_Sent(request_id, shape, number, answer))
        return judged

    async def _gateway_fate(self, session: aiohttp.ClientSession, request_id: str) -> dict[str, Any] | None:
        timeout = aiohttp.ClientTimeout(total=LOOKUP_TIMEOUT_S)
        try:
            async with session.get(f"{self._url}/gateway/requests/{request_id}", timeout=timeout) as response:
                if response.status != 200:
                    return None
                fate: dict[str, Any] = await response.json()
                return fate
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            log.debug("fate.unknown", request_id=request_id, error=type(error).__name__)
            return None

    async def _verify(self, session: aiohttp.ClientSession, sent: _Sent, gate: asyncio.Semaphore) -> None:
        body, asked = self._body(sent.shape, sent.number), sent.shape.output_tokens
        async with gate:
            for turn in range(VERIFY_TRIES):
                again = StreamedAnswer(sent_at=self._clock())
                await self._exchange(session, f"{sent.request_id}-again-{turn}", body, again)
                if judge(again, asked).fate is not RequestFate.REFUSED:
                    break
                await asyncio.sleep(VERIFY_PAUSE_S * turn)
        if judge(again, asked).fate is not RequestFate.FINISHED:
            self._moved.append(sent)  # stays unverified: nothing is known for or against it
            return
        judged = compare(sent.answer, again)
        if judged.fate is RequestFate.FINISHED:
            self._ledger.verified += 1
        else:
            self._ledger.correct(judged)
            log.warning("request.differs_after_move", request_id=sent.request_id, fate=judged.fate.value)

    def _body(self, shape: RequestShape, number: int) -> bytes:
        settings = self._settings
        salt = settings.seed * 1_000_003 + number
        text = prompt_text(shape, salt=salt, chars_per_token=settings.chars_per_token)
        body: dict[str, Any] = {
            "model": settings.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": shape.output_tokens,
            "temperature": settings.temperature,
            "seed": salt % 2**31,
        }
        if settings.is_exact:
            body |= {"ignore_eos": True, "return_token_ids": True}
        if not (settings.plain_every and number % settings.plain_every == settings.plain_every - 1):
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if settings.salts_each:
            body["cache_salt"] = f"user-{salt}"
        return json.dumps(body).encode()


async def measure_chars_per_token(url: str, model: str, api_key: str | None = None, *, is_exact: bool = True) -> float:
    """How many characters of our prompts make one of the model's tokens. Raises CalibrationError.

    Two prompts are compared, so that what a chat template adds is left out.
    """
    run = LoadRun(LoadSettings(url=url, model=model, api_key=api_key, is_exact=is_exact))
    counts = []
    for prompt_tokens in (1, CALIBRATION_TOKENS):
        answer = StreamedAnswer(sent_at=0.0)
        shape = RequestShape(0.0, prompt_tokens, 1)
        async with run._session() as session:
            await run._exchange(session, f"{run._name}-calibrate-{prompt_tokens}", run._body(shape, 0), answer)
        if answer.prompt_tokens is None:
            raise CalibrationError(f"{url}: status {answer.status}, {answer.error or 'no usage in the answer'}")
        counts.append(answer.prompt_tokens)
    chars = (CALIBRATION_TOKENS - 1) * CHARS_PER_TOKEN
    return chars / max(1, counts[1] - counts[0])


async def is_set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether it is set. Wait for the event, at most so long; always lets other tasks run."""
    if seconds <= 0:
        await asyncio.sleep(0)
        return event.is_set()
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return event.is_set()
    return True
