"""Tokens ahead, on and off: two of our nodes take turns on the same requests, so that a neighbour disturbs both alike.

Each method in its turn, beside a node without that is as old. The model walks: each word has one that follows it. So a
text can be made whose answer is in its prompt, wholly, in pieces or not at all, on a model whose steps cost what any of
its shape do. Drafters are made for it (`drafters.py`) that know all of its words, some, or none.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import cast

import httpx

from engine.bench.bench_model import next_words
from engine.bench.drafters import Made, made_drafter
from engine.bench.http_load import run_http_load
from engine.bench.report import describe_machine
from engine.bench.roofline import measure_machine
from engine.bench.servers import MODEL_NAME, Server, our_node, running
from engine.bench.workload import BenchRequest

ROUNDS = 5
REQUESTS_PER_CLIENT = 2
PROMPT_WORDS = 400
SHORTEST_PIECE, LONGEST_PIECE = 6, 24
METHODS = ("ngram", "draft", "medusa", "eagle3")
SHARES = (1.0, 0.6, 0.0)  # of the words, that a made drafter knows
PROPOSED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
HEADER = (
    "| method | text | at once | off, output tokens/s | on, output tokens/s | times | proposals right |"
    "\n|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class SpeculationComparison:
    """What is measured."""

    model: Path
    drafters: Path  # where made ones are kept
    methods: Sequence[str]
    shares: Sequence[float]
    concurrencies: Sequence[int]
    dtype: str
    num_threads: int
    num_rounds: int
    output_tokens: int
    report_progress: Callable[[str], None]

    def measure(self) -> str:
        """The table, as Markdown. Raises ServerError, IncompleteAnswerError."""
        lines: list[str] = []
        for method in self.methods:
            for share in (None,) if method == "ngram" else self.shares:
                # both started now: a node finds out in its first minute how many threads are fastest
                options = self._options(method, share)
                with running(self._node()) as off, running(self._node(*options)) as on:
                    lines += self._measure_method(method, share, {"off": off, method: on})
        machine = describe_machine({self.dtype: measure_machine(self.dtype, self.num_threads)})
        how = f"{self.dtype}, {self.num_threads} threads, {self.output_tokens} tokens an answer, greedy; the best of "
        return "\n".join([machine, "", f"{how}{self.num_rounds} rounds in turns.", "", HEADER, *lines]) + "\n"

    def _node(self, *options: str) -> Server:
        return our_node(self.model, self.dtype, self.num_threads, version("llm-fleetctl"), options)

    def _options(self, method: str, share: float | None) -> tuple[str, ...]:
        if share is None:
            return ("--speculation", method)
        made = made_drafter(cast(Made, method), self.model, self.drafters, share)
        return ("--speculation", method, "--draft-model", str(made))

    def _measure_method(self, method: str, share: float | None, urls: dict[str, str]) -> Iterator[str]:
        """A row for each text: what heads say does not depend on the prompt, so that one text does for them."""
        texts = TEXTS if share is None else {FREE: TEXTS[FREE]}
        name = method if share is None else f"{method}, knows {share:.0%} of the words"
        for concurrency in self.concurrencies:
            for text, make in texts.items():
                yield f"| {name} | {text} | {concurrency} | {self._measure(method, urls, text, make, concurrency)} |"

    def _measure(
        self,
        method: str,
        urls: dict[str, str],
        text: str,
        make: Callable[[random.Random, int], tuple[int, ...]],
        concurrency: int,
    ) -> str:
        rng = random.Random(concurrency)
        best = dict.fromkeys(urls, 0.0)
        count = concurrency * REQUESTS_PER_CLIENT
        before = _counts(urls[method])
        for number in range(self.num_rounds + 1):
            # other words each time, for both: their prompts are computed, and nothing was learned of these requests
            prompts = [make(rng, self.output_tokens) for _ in range(count)]
            requests = [BenchRequest(prompt, self.output_tokens, has_prefix=False) for prompt in prompts]
            for mode, url in sorted(urls.items(), reverse=number % 2 == 1):
                found = asyncio.run(run_http_load(url, MODEL_NAME, requests, concurrency)).output_tokens_per_s
                if number:  # the first one is for what first requests cost
                    best[mode] = max(best[mode], found)
                self.report_progress(f"{text} x{concurrency} {mode}: {found:.1f} tokens/s")
        proposed, accepted = (now - then for now, then in zip(_counts(urls[method]), before, strict=True))
        right = f"{accepted:.0f} of {proposed:.0f} ({accepted / proposed:.0%})" if proposed else "none made"
        return f"{best['off']:.1f} | {best[method]:.1f} | {best[method] / best['off']:.2f} | {right}"


def _counts(url: str) -> tuple[float, float]:
    text = httpx.get(f"{url}/metrics", timeout=60.0).text
    samples = dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))
    return tuple(  # type: ignore[return-value]
        next(float(value) for head, value in samples.items() if head.startswith(name + "{"))
        for name in (PROPOSED, ACCEPTED)
    )


def _walk(word: int) -> Iterator[int]:
    following = next_words()
    while True:
        yield word
        word = following[word]


def _repeats(rng: random.Random, output_tokens: int) -> tuple[int, ...]:
    """The answer lies in the prompt in one piece, as in a quotation."""
    words = list(next_words())
    walk = _walk(rng.choice(words))
    text = [next(walk) for _ in range(max(PROMPT_WORDS, output_tokens + 8))]
    return (*text, *text[:4])


def _in_pieces(rng: random.Random, output_tokens: int) -> tuple[int, ...]:
    """The answer lies in the prompt in pieces of some words, as in an edit or a summary that quotes."""
    words = list(next_words())
    walk = _walk(rng.choice(words))
    text = [next(walk) for _ in range(max(PROMPT_WORDS, output_tokens + 8))]
    pieces, at = [], 0
    while at < len(text):
        length = rng.randint(SHORTEST_PIECE, LONGEST_PIECE)
        pieces.append(text[at : at + length])
        at += length
    rng.shuffle(pieces)
    return (*(word for piece in pieces for word in piece), *text[:4])


def _misleading(rng: random.Random, output_tokens: int) -> tuple[int, ...]:
    """Every two words of the answer are in the prompt, each time with another one behind them: proposals are wrong."""
    words = list(next_words())
    walk = _walk(rng.choice(words))
    text = [next(walk) for _ in range(output_tokens + 8)]
    pairs = list(pairwise(text))
    rng.shuffle(pairs)
    return (*(word for pair in pairs for word in pair), *text[:4])


def _free(rng: random.Random, output_tokens: int) -> tuple[int, ...]:
    """Nothing of the answer is in the prompt."""
    words = list(next_words())
    return tuple(rng.choice(words) for _ in range(PROMPT_WORDS))


FREE = "does not"
TEXTS: dict[str, Callable[[random.Random, int], tuple[int, ...]]] = {
    "repeats its prompt": _repeats,
    "repeats it in pieces": _in_pieces,
    "seems to repeat it": _misleading,
    FREE: _free,
}
