"""The demo's traffic: streamed chat requests through the gateway, each one accounted for at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from fleetctl.demo.report import RequestCounts
from fleetctl.load.client import LoadRun, LoadSettings, measure_chars_per_token
from fleetctl.load.generated_shapes import TrafficKind, generate_shapes
from fleetctl.load.request_fate import JudgedFate
from fleetctl.load.shape import RequestShape, Scale, scale_shapes
from fleetctl.load.streamed_answer import StreamedAnswer
from fleetctl.load.trace import load_trace

# What the small demo model serves on two cores beside everything else; traces are cut to it.
MAX_PROMPT_TOKENS = 512
MAX_OUTPUT_TOKENS = 400


class DemoTraffic:
    """Sends requests from `send_until_stopped` until `stop_sending`."""

    def __init__(self, gateway_url: str, model: str, *, rate_per_s: float, seed: int, trace: Path | None) -> None:
        self._url, self._model = gateway_url, model
        self._seed = seed
        self._shapes = traffic_shapes(rate_per_s, seed, trace)
        self._stop = asyncio.Event()
        self._load: LoadRun | None = None
        self._ttft: list[tuple[float, float]] = []  # (seconds since the start, TTFT)

    async def send_until_stopped(self) -> None:
        """Send, and return when all that was sent has ended."""
        chars = await measure_chars_per_token(self._url, self._model)
        self._load = LoadRun(
            LoadSettings(url=self._url, model=self._model, seed=self._seed, chars_per_token=chars),
            on_answer=self._note,
        )
        await self._load.send_all(self._shapes, self._stop)

    def stop_sending(self) -> None:
        """Send nothing more; `send_until_stopped` returns when what is in flight has ended."""
        self._stop.set()

    async def account(self) -> RequestCounts:
        """Every request's fate. Moved ones are sent again undisturbed, and must have got the same tokens."""
        assert self._load is not None
        report = await self._load.verify_moved()
        return RequestCounts(
            sent=report.sent,
            finished=report.finished,
            moved=report.moved,
            refused=report.refused,
            # A request that we can't show to be whole counts against us.
            lost=report.lost + report.unverified + report.abandoned,
            duplicated=report.duplicated,
        )

    def ttft_p95_s(self, since: float, until: float) -> float | None:
        """Of requests sent between two times of `time.monotonic()`; None without any."""
        chosen = sorted(ttft for sent_at, ttft in self._ttft if since <= sent_at < until)
        return chosen[min(len(chosen) - 1, int(0.95 * len(chosen)))] if chosen else None

    def _note(self, answer: StreamedAnswer, judged: JudgedFate) -> None:
        if answer.ttft_s is not None:
            self._ttft.append((answer.sent_at, answer.ttft_s))


def traffic_shapes(rate_per_s: float, seed: int, trace: Path | None) -> Iterable[RequestShape]:
    """Built-in traffic, or a trace's shapes at this mean rate. Raises BadInputError for an unreadable trace."""
    if trace is None:
        return generate_shapes(
            TrafficKind(
                rate_per_s=rate_per_s,
                output_tokens_median=32,
                output_sigma=1.2,  # a long tail: some are under way when a node is emptied
                max_prompt_tokens=MAX_PROMPT_TOKENS,
                max_output_tokens=MAX_OUTPUT_TOKENS,
                seed=seed,
            )
        )
    shapes = load_trace(trace)
    span_s = max(shapes[-1].at_s - shapes[0].at_s, 1e-3)
    longest = max(shape.prompt_tokens for shape in shapes)
    scale = Scale(
        time_ratio=max((len(shapes) / span_s) / rate_per_s, 1e-9),
        length_ratio=min(1.0, 4.0 * MAX_PROMPT_TOKENS / longest),
        max_prompt_tokens=MAX_PROMPT_TOKENS,
        max_output_tokens=MAX_OUTPUT_TOKENS,
    )
    return scale_shapes(shapes, scale)
