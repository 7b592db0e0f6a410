"""One long prompt beside short streams: when its answer begins, and what the streams notice of it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from engine.bench.figures import RequestTiming, percentile
from engine.bench.http_load import IncompleteAnswerError, ask, client_session, run_http_load
from engine.bench.report import describe_machine
from engine.bench.roofline import measure_machine
from engine.bench.servers import MODEL_NAME, ours_and_peers, running
from engine.bench.workload import BenchRequest, make_workload, random_words

STREAMS = 8
STREAM_PROMPT_TOKENS, STREAM_OUTPUT_TOKENS = 64, 64
LONG_OUTPUT_TOKENS = 16
HEADER = (
    "| engine | dtype | prompt tokens | its TTFT s | prompt tokens/s | streams' output tokens/s meanwhile "
    "| streams' TTFT p50 / p95 ms | streams' ITL p50 / p95 / longest ms |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class LongPromptComparison:
    """What is measured."""

    model: Path
    prompt_tokens: Sequence[int]
    dtypes: Sequence[str]
    num_threads: int
    peers: Sequence[str]
    report_progress: Callable[[str], None]

    def measure(self) -> str:
        """The table, as Markdown. Raises ServerError, IncompleteAnswerError."""
        lines = [line for dtype in self.dtypes for line in self._measure_dtype(dtype)]
        machine = describe_machine({self.dtypes[0]: measure_machine(self.dtypes[0], self.num_threads)})
        how = f"One long prompt beside {STREAMS} streams of short ones; {self.num_threads} threads."
        return "\n".join([machine, "", how, "", HEADER, *lines]) + "\n"

    def _measure_dtype(self, dtype: str) -> Iterator[str]:
        for server in ours_and_peers(self.model, dtype, self.num_threads, self.report_progress, peers=self.peers):
            with running(server) as url:
                asyncio.run(run_http_load(url, MODEL_NAME, make_workload(2, max_output_tokens=8, seed=1), 2))
                for tokens in self.prompt_tokens:
                    self.report_progress(f"{server.name} {dtype}: a prompt of {tokens} tokens")
                    yield self._line(server.name, dtype, tokens, *asyncio.run(_beside_streams(url, tokens)))

    def _line(self, engine: str, dtype: str, tokens: int, long: RequestTiming, beside: Sequence[RequestTiming]) -> str:
        ttft_s, ended_at = long.chunk_times[0] - long.sent_at, long.chunk_times[0]
        # What came while the long prompt was computed, of answers that began before and ended after it, too.
        meanwhile = [at for answer in beside for at in answer.chunk_times if long.sent_at <= at <= ended_at]
        gaps = sorted(
            later - sooner
            for answer in beside
            for sooner, later in zip(answer.chunk_times, answer.chunk_times[1:], strict=False)
            if later >= long.sent_at and sooner <= ended_at
        )
        ttfts = sorted(a.chunk_times[0] - a.sent_at for a in beside if long.sent_at <= a.sent_at <= ended_at)
        first = " / ".join(f"{percentile(ttfts, share) * 1e3:.0f}" for share in (0.5, 0.95)) if ttfts else "-"
        between = " / ".join(f"{percentile(gaps, share) * 1e3:.0f}" for share in (0.5, 0.95, 1.0)) if gaps else "-"
        self.report_progress(f"{engine} {dtype}: TTFT {ttft_s:.1f} s")
        rates = f"{ttft_s:.1f} | {tokens / ttft_s:.0f} | {len(meanwhile) / ttft_s:.1f}"
        return f"| {engine} | {dtype} | {tokens} | {rates} | {first} | {between} |"


async def _beside_streams(url: str, tokens: int) -> tuple[RequestTiming, list[RequestTiming]]:
    """The long request, and all answers of the streams from before it to after it."""
    rng, beside, flowing, done = random.Random(tokens), [], asyncio.Event(), asyncio.Event()

    async def stream(session: aiohttp.ClientSession) -> None:
        while not done.is_set():
            request = BenchRequest(random_words(rng, STREAM_PROMPT_TOKENS), STREAM_OUTPUT_TOKENS, has_prefix=False)
            beside.append(await ask(session, url, MODEL_NAME, request))
            if len(beside) >= STREAMS:
                flowing.set()

    async def long(session: aiohttp.ClientSession) -> RequestTiming:
        await flowing.wait()
        try:
            return await ask(
                session, url, MODEL_NAME, BenchRequest(random_words(rng, tokens), LONG_OUTPUT_TOKENS, has_prefix=False)
            )
        finally:
            done.set()

    async with client_session() as session:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(STREAMS):
                    group.create_task(stream(session))
                answer = group.create_task(long(session))
        except* (IncompleteAnswerError, aiohttp.ClientError, TimeoutError) as failed:
            raise IncompleteAnswerError(str(failed.exceptions[0])) from failed
    return answer.result(), beside
