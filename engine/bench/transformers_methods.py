"""How transformers is asked: `generate` on static batches, and its continuous batching. Both run in this process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from engine.bench.figures import RequestTiming
from engine.bench.workload import BenchRequest

# By itself continuous batching takes 60 % of the memory for its cache and a mask that grows with it: more than this
# machine may have, and a quarter of a minute for each start. 32,768 tokens hold 32 of the longest requests.
PAGE_TOKENS = 32
NUM_PAGES = 1024
BATCH_TOKENS = 2048
RESULT_WAIT_S = 1.0
STOP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What one method generated within the time limit."""

    answers: list[RequestTiming]  # of requests that got all their tokens
    cut_tokens: int  # of those that the limit cut off
    seconds: float


def answer_requests(
    *,
    model_dir: str,
    dtype: str,
    method: str,
    requests: Sequence[BenchRequest],
    concurrency: int,
    num_threads: int,
    limit_s: float,
) -> PeerResult:
    """Answers the requests in their order. Raises RuntimeError when transformers loses one or ends it early."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(num_threads)
    loaded: Any = AutoModelForCausalLM
    model = loaded.from_pretrained(model_dir, dtype=getattr(torch, dtype), attn_implementation="sdpa").eval()
    if torch.cuda.is_available():
        model = model.cuda()
    short = [BenchRequest(tuple(reversed(r.prompt)), 4, r.has_prefix) for r in requests[:2]]  # no prefix is kept
    if method == "generate":
        answer_static(model, short, 2, math.inf)
        return answer_static(model, requests, concurrency, limit_s)
    with _manager(model) as manager:
        answer_continuous(manager, short, 2, math.inf)
        return answer_continuous(manager, requests, concurrency, limit_s)


def answer_static(model: Any, requests: Sequence[BenchRequest], concurrency: int, limit_s: float) -> PeerResult:
    """A batch runs until its longest answer ends; of the others only what was asked for counts."""
    import torch

    answers: list[RequestTiming] = []
    cut_tokens = 0
    started = time.perf_counter()
    for first in range(0, len(requests), concurrency):
        sent_at = time.perf_counter()
        batch = requests[first : first + concurrency]
        width, wanted = max(len(r.prompt) for r in batch), max(r.output_tokens for r in batch)
        ids = torch.zeros((len(batch), width), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for i, request in enumerate(batch):
            ids[i, width - len(request.prompt) :] = torch.tensor(request.prompt)
            mask[i, width - len(request.prompt) :] = 1
        times: list[float] = []

        def is_over(tokens: Any, _scores: Any, times: list[float] = times) -> Any:
            times.append(time.perf_counter())
            return torch.full((len(tokens),), times[-1] - started > limit_s, device=tokens.device)

        model.generate(
            input_ids=ids.to(model.device),
            attention_mask=mask.to(model.device),
            max_new_tokens=wanted,
            min_new_tokens=wanted,
            do_sample=False,
            stopping_criteria=[is_over],
        )
        is_cut = times[-1] - started > limit_s
        if len(times) != wanted and not is_cut:
            raise RuntimeError(f"generate ended after {len(times)} tokens, {wanted} were asked for")
        for request in batch:
            if len(times) >= request.output_tokens:
                answers.append(RequestTiming(sent_at, tuple(times[: request.output_tokens]), request.output_tokens))
            else:
                cut_tokens += len(times)
        if is_cut:
            break
    return PeerResult(answers, cut_tokens, time.perf_counter() - started)


def _manager(model: Any) -> Any:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    generation_config: Any = GenerationConfig
    return model.continuous_batching_context_manager(
        generation_config=generation_config(do_sample=False, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE_TOKENS,
            num_blocks=NUM_PAGES,
            max_batch_tokens=BATCH_TOKENS,
            auto_switch_to_flash=False,
        ),
        timeout=STOP_TIMEOUT_S,
    )


def answer_continuous(manager: Any, requests: Sequence[BenchRequest], concurrency: int, limit_s: float) -> PeerResult:
    """Sends the next request when one ends, as the clients of the servers do."""
    waiting = iter(requests)
    in_flight: dict[str, tuple[float, BenchRequest]] = {}
    answers: list[RequestTiming] = []
    started = time.perf_counter()

    def send() -> None:
        request = next(waiting, None)
        if request is None:
            return
        sent_at = time.perf_counter()
        name = manager.add_request(list(request.prompt), max_new_tokens=request.output_tokens, record_timestamps=True)
        if name is None:
            raise RuntimeError("continuous batching takes no more requests")
        in_flight[name] = (sent_at, request)

    for _ in range(concurrency):
        send()
    while in_flight and time.perf_counter() - started < limit_s:
        output = manager.get_result(timeout=RESULT_WAIT_S)
        if output is None:
            if not manager.is_running():
                raise RuntimeError("the thread of continuous batching ended")
            continue
        if not output.is_finished():
            continue
        sent_at, request = in_flight.pop(output.request_id)
        num_tokens = len(output.generated_tokens)
        if output.error is not None or num_tokens != request.output_tokens:
            raise RuntimeError(f"continuous batching gave {num_tokens}/{request.output_tokens} tokens: {output.error}")
        answers.append(RequestTiming(sent_at, tuple(output.timestamps), request.output_tokens))
        send()
    seconds = time.perf_counter() - started
    return PeerResult(answers, _cut(manager, len(in_flight)), seconds)


def _cut(manager: Any, num_in_flight: int) -> int:
    """Stops the manager if requests are in flight; gives how many tokens those have."""
    if num_in_flight == 0:
        return 0
    manager.stop(hard_stop=True, timeout=STOP_TIMEOUT_S)
    ended = (manager.get_result(timeout=RESULT_WAIT_S) for _ in range(num_in_flight))
    return sum(len(output.generated_tokens) for output in ended if output is not None)
