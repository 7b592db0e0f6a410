"""A node's metrics: vLLM's names, types, labels and buckets where the signal is the same, `engine_*` for ours.

Each node has a registry of its own; series with closed label sets exist from the start, at zero, so that a rate sees
the first event. Requests in flight show in gauges and in the age of the oldest: histograms are observed when a
request ends, and would hide one that hangs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from engine.node.choice import Choice
from engine.node.drain import DrainState
from engine.node.health import Reason
from engine.node.inflight import Fate, InflightRequest, Stage, load_of, oldest_ages_s
from engine.node.limits import LiveLimits
from engine.node.queue_guard import QUEUE_TIMEOUT
from engine.protocol.grammar_trial import TrialResult
from engine.protocol.messages import CoreReady, StepReport

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

TTFT_BUCKETS_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
TOKEN_BUCKETS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_BUCKETS_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
STEP_BUCKETS_S = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 10.0, 30.0),
)
ITERATION_BUCKETS = (1, 8, *(2**power for power in range(4, 15)))

QUEUE_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
RATIO_BUCKETS = (0.25, 0.5, 0.75, 0.9, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 100.0)
CHOICE_BUCKETS = (1, 2, 5, 10, 20)
PREEMPTION_BUCKETS = (1, 2, 3, 4, 5, 10, 20)

FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")
GOLDEN_RESULTS = ("passed", "failed", "error")
STEP_KINDS = ("prefill", "decode", "mixed")
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # by level
REJECTIONS = ("overloaded", "not_ready", "draining", QUEUE_TIMEOUT)
QUEUE_LIMITS = ("max_num_queued_reqs", "max_num_queued_tokens")
SWAP_DIRECTIONS = ("out", "in")
PROMPT_SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def length_buckets(max_model_len: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 ... up to the longest sequence."""
    series = (mantissa * 10**power for power in range(12) for mantissa in (1, 2, 5))
    buckets = []
    for bound in series:
        if bound > max_model_len:
            break
        buckets.append(bound)
    return tuple(buckets) or (1,)


class NodeMetrics:
    """All series of one node. Methods are called from the event loop."""

    def __init__(self, *, model_name: str, max_model_len: int, num_speculative_tokens: int = 0) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry(auto_describe=True)
        ProcessCollector(registry=self.registry)
        self._model_name = model_name
        self._labels = {"model_name": model_name, "engine": "0"}
        self._cache_config: Gauge | None = None
        self._integrity_ok: Gauge | None = None
        self._golden_ok: Gauge | None = None
        lengths = length_buckets(max_model_len)
        self.running = self._gauge("vllm:num_requests_running", "Requests in model execution batches.")
        self.waiting = self._gauge("vllm:num_requests_waiting", "Requests waiting to be scheduled.")
        self.waiting_for = Gauge(
            "vllm:num_requests_waiting_by_reason",
            "Requests waiting, for room (capacity) or for something else (deferred).",
            (*self._labels, "reason"),
            registry=self.registry,
        )
        self.kv_usage = self._gauge("vllm:kv_cache_usage_perc", "KV cache in use, 0 to 1; kept for reuse is free.")
        self.preemptions = self._counter("vllm:num_preemptions", "Preemptions.")
        self.prefix_queries = self._counter("vllm:prefix_cache_queries", "Prompt tokens looked up in the prefix cache.")
        self.prefix_hits = self._counter("vllm:prefix_cache_hits", "Prompt tokens found in the prefix cache.")
        self.prompt_tokens = self._counter("vllm:prompt_tokens", "Prompt tokens prefilled.")
        self.generation_tokens = self._counter("vllm:generation_tokens", "Tokens generated.")
        self.cached_tokens = self._counter("vllm:prompt_tokens_cached", "Prompt tokens whose KV was there already.")
        self.prompt_sources = Counter(
            "vllm:prompt_tokens_by_source",
            "Prompt tokens by where their KV came from.",
            (*self._labels, "source"),
            registry=self.registry,
        )
        for source in PROMPT_SOURCES:
            self.prompt_sources.labels(**self._labels, source=source)
        self.queue_rejections = Counter(
            "vllm:admission_rejections",
            "Requests refused by a full queue.",
            ("model_name", "reason"),
            registry=self.registry,
        )
        for limit in QUEUE_LIMITS:
            self.queue_rejections.labels(model_name=model_name, reason=limit)
        self.success = Counter(
            "vllm:request_success",
            "Requests ended, by reason.",
            ("model_name", "engine", "finished_reason"),
            registry=self.registry,
        )
        for reason in FINISH_REASONS:
            self.success.labels(**self._labels, finished_reason=reason)
        self.ttft = self._histogram("vllm:time_to_first_token_seconds", "Arrival to first token.", TTFT_BUCKETS_S)
        self.itl = self._histogram("vllm:inter_token_latency_seconds", "Token to token.", TOKEN_BUCKETS_S)
        self.tpot = self._histogram(
            "vllm:request_time_per_output_token_seconds", "Mean token to token of a request.", TOKEN_BUCKETS_S
        )
        self.e2e = self._histogram("vllm:e2e_request_latency_seconds", "Arrival to last token.", REQUEST_BUCKETS_S)
        self.queue = self._histogram(
            "vllm:request_queue_time_seconds", "Given to the core to scheduled.", REQUEST_BUCKETS_S
        )
        self.prefill = self._histogram(
            "vllm:request_prefill_time_seconds", "Scheduled to first token.", REQUEST_BUCKETS_S
        )
        self.decode = self._histogram("vllm:request_decode_time_seconds", "First to last token.", REQUEST_BUCKETS_S)
        self.inference = self._histogram(
            "vllm:request_inference_time_seconds", "Scheduled to last token.", REQUEST_BUCKETS_S
        )
        self.request_prompt = self._histogram("vllm:request_prompt_tokens", "Prompt tokens of a request.", lengths)
        self.request_generation = self._histogram(
            "vllm:request_generation_tokens", "Tokens generated for a request.", lengths
        )
        self.most_generation = self._histogram(
            "vllm:request_max_num_generation_tokens", "Tokens of a request's longest choice.", lengths
        )
        self.asked_tokens = self._histogram("vllm:request_params_max_tokens", "max_tokens of a request.", lengths)
        self.asked_choices = self._histogram("vllm:request_params_n", "n of a request.", CHOICE_BUCKETS)
        self.request_preemptions = self._histogram(
            "vllm:request_num_preemptions", "Preemptions of a request.", PREEMPTION_BUCKETS
        )
        self.request_computed = self._histogram(
            "vllm:request_prefill_kv_computed_tokens", "Prompt tokens computed anew for a request.", lengths
        )
        self.iteration = self._histogram("vllm:iteration_tokens_total", "Tokens computed in a step.", ITERATION_BUCKETS)
        self._speculation(num_speculative_tokens)
        self._own()

    def _speculation(self, num_speculative_tokens: int) -> None:
        self.drafts = self._counter("vllm:spec_decode_num_drafts", "Times that tokens were proposed for a request.")
        self.draft_tokens = self._counter("vllm:spec_decode_num_draft_tokens", "Tokens proposed.")
        self.accepted_tokens = self._counter(
            "vllm:spec_decode_num_accepted_tokens", "Tokens proposed that the model drew as well."
        )
        by_position = Counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos",
            "Tokens proposed that the model drew as well, by their place in a proposal, from 0.",
            (*self._labels, "position"),
            registry=self.registry,
        )
        self.accepted_at = [
            by_position.labels(**self._labels, position=str(position)) for position in range(num_speculative_tokens)
        ]

    def _own(self) -> None:
        registry = self.registry
        self.step = Histogram(
            "engine_step_seconds",
            "Seconds of one step of the core, by what it computed.",
            ("model_name", "engine", "kind"),
            buckets=STEP_BUCKETS_S,
            registry=registry,
        )
        self.slowness = Histogram(
            "engine_step_slowness_ratio",
            "Seconds of a step over what such a batch and context took before, 1 as ever; by what it computed.",
            ("model_name", "engine", "kind"),
            buckets=RATIO_BUCKETS,
            registry=registry,
        )
        self._steps = {
            kind: tuple(family.labels(**self._labels, kind=kind) for family in (self.step, self.slowness))
            for kind in STEP_KINDS
        }
        self.queue_wait = Histogram(
            "engine_queue_wait_seconds",
            "Given to the core to scheduled, observed then and not only at the end.",
            buckets=QUEUE_BUCKETS_S,
            registry=registry,
        )
        self.fates = Counter("engine_requests", "Client requests by terminal state.", ("state",), registry=registry)
        for fate in Fate:
            self.fates.labels(state=fate.value)
        self.admitted = Counter(
            "engine_requests_admitted",
            "Requests taken in, but those that went on from another node.",
            registry=registry,
        )
        self.rejected = Counter("engine_admission_rejected", "Requests refused.", ("reason",), registry=registry)
        for reason in REJECTIONS:
            self.rejected.labels(reason=reason)
        self.drain = Gauge("engine_drain_state", "1 for the state the node is in.", ("state",), registry=registry)
        self.oldest_waiting = Gauge(
            "engine_oldest_waiting_seconds", "Age of the oldest request not yet scheduled.", registry=registry
        )
        self.oldest_running = Gauge(
            "engine_oldest_running_seconds", "Age of the oldest request in execution.", registry=registry
        )
        self.longest_prompt = Gauge(
            "engine_longest_prompt_tokens",
            "Tokens of the longest prompt in flight, by how far its request is: waiting, prefill, decode.",
            ("stage",),
            registry=registry,
        )
        for stage in Stage:
            self.longest_prompt.labels(stage=stage.value)
        self.prefill_requests = Gauge(
            "engine_prefill_requests", "Requests begun that have no first token yet.", registry=registry
        )
        self.prefill_backlog = Gauge(
            "engine_prefill_backlog_tokens",
            "Prompt tokens of requests without a first token, but those found in the prefix cache.",
            registry=registry,
        )
        self.longest_output = Gauge(
            "engine_longest_output_tokens", "Tokens of the longest answer that is under way.", registry=registry
        )
        self.frontend = Histogram(
            "engine_frontend_seconds",
            "Arrival to given to the core: reading, tokenising and checking a request in the API process.",
            buckets=QUEUE_BUCKETS_S,
            registry=registry,
        )
        self.node_state = Gauge(
            "engine_node_state", "1 for what /health says of the node, 0 for the others.", ("state",), registry=registry
        )
        for reason_now in Reason:
            self.node_state.labels(state=reason_now.value)
        self.tasks = Gauge("engine_asyncio_tasks", "Tasks on the API process' event loop.", registry=registry)
        self.sleep_state = Gauge(
            "vllm:engine_sleep_state",
            "1 for the state: awake, weights_offloaded (level 1; on a CPU they stay), discard_all (level 2).",
            (*self._labels, "sleep_state"),
            registry=registry,
        )
        self.limits = Gauge(
            "engine_limit",
            "Limits of a step that are in force: max_num_seqs, max_num_batched_tokens, prefill_chunk_tokens.",
            ("limit",),
            registry=self.registry,
        )
        self.core_up = Gauge("engine_core_up", "1 while the core process answers.", registry=registry)
        self.preempted_tokens = Counter(
            "engine_preempted_tokens", "Computed tokens thrown away by preemption.", registry=registry
        )
        self.swapped_blocks = Counter(
            "engine_swapped_blocks",
            "KV blocks of preempted requests moved to host memory (out) and back (in).",
            ("direction",),
            registry=registry,
        )
        self._swapped_out, self._swapped_in = map(self.swapped_blocks.labels, SWAP_DIRECTIONS)
        self.swap_blocks_used = Gauge(
            "engine_swap_blocks_used", "KV blocks of preempted requests that wait in host memory.", registry=registry
        )
        self.failed_steps = Counter("engine_failed_steps", "Steps that failed as a whole.", registry=registry)
        self.output_failures = Counter(
            "engine_output_failures", "Requests ended because their output could not be read.", registry=registry
        )
        self.grammar_trials = Counter(
            "engine_grammar_trials",
            "Grammars of clients that were tried in the grammar helper, by how that ended.",
            ("result",),
            registry=registry,
        )
        for trial_result in TrialResult:
            self.grammar_trials.labels(result=trial_result.value)
        self.oom_caught = Counter(
            "engine_oom_caught", "Steps that ran out of memory; the node goes on.", registry=registry
        )
        self.golden_runs = Counter(
            "engine_golden_runs", "Golden prompts asked, by result.", ("result",), registry=registry
        )
        for result in GOLDEN_RESULTS:
            self.golden_runs.labels(result=result)
        self.core_stuck = Gauge("engine_core_stuck", "1 while the core makes no progress.", registry=registry)
        self.core_deaths = Counter(
            "engine_core_deaths", "Core processes that ended unasked, also those killed as stuck.", registry=registry
        )
        self.core_restarts = Counter("engine_core_restarts", "Restarts of the core process.", registry=registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(name, text, tuple(self._labels), registry=self.registry).labels(**self._labels)

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(name, text, tuple(self._labels), buckets=buckets, registry=self.registry)
        return family.labels(**self._labels)

    def note_integrity(self, is_ok: bool) -> None:
        """The series appears with the first check: before it nothing is known."""
        if self._integrity_ok is None:
            self._integrity_ok = Gauge(
                "engine_integrity_ok", "0 once the core's own block check failed.", registry=self.registry
            )
        self._integrity_ok.set(1 if is_ok else 0)

    def note_grammar_trial(self, result: TrialResult) -> None:
        """One grammar of a client was tried."""
        self.grammar_trials.labels(result=result.value).inc()

    def note_golden(self, result: str) -> None:
        """One golden prompt was asked: passed, failed, or error when it has no answer, which says nothing."""
        self.golden_runs.labels(result=result).inc()
        if result == "error":
            return
        if self._golden_ok is None:
            self._golden_ok = Gauge(
                "engine_golden_ok", "0 while the model's answer to a known prompt is wrong.", registry=self.registry
            )
        self._golden_ok.set(1 if result == "passed" else 0)

    def note_ready(self, ready: CoreReady, *, prefix_caching: bool) -> None:
        """Publishes the cache configuration, once known."""
        capacity = ready.num_kv_blocks * ready.block_size
        facts = {
            "engine": "0",
            "block_size": str(ready.block_size),
            "num_gpu_blocks": str(ready.num_kv_blocks),
            "num_cpu_blocks": str(ready.num_host_blocks),
            "kv_cache_size_tokens": str(capacity),
            "kv_cache_max_concurrency": f"{capacity / ready.max_model_len:.2f}",
            "cache_dtype": ready.dtype if ready.kv_cache_dtype == "auto" else ready.kv_cache_dtype,
            "enable_prefix_caching": str(prefix_caching),
        }
        if self._cache_config is None:
            self._cache_config = Gauge(
                "vllm:cache_config_info", "KV cache configuration.", tuple(facts), registry=self.registry
            )
        self._cache_config.clear()
        self._cache_config.labels(**facts).set(1)

    def note_step(self, report: StepReport) -> None:
        """One step of the core was reported."""
        if report.num_tokens > 0:  # a report without a step carries the ends of aborted requests
            step, slowness = self._steps[report.kind]
            step.observe(report.seconds)
            self.iteration.observe(report.num_tokens)
            if report.slowness_ratio is not None:
                slowness.observe(report.slowness_ratio)
        self.swap_blocks_used.set(report.host_blocks_used)
        # Of most steps all of these are 0, and each addition takes a microsecond between two tokens.
        for counter, count in (
            (self.preemptions, report.preemptions),
            (self.preempted_tokens, report.preempted_tokens),
            (self._swapped_out, report.swapped_out_blocks),
            (self._swapped_in, report.swapped_in_blocks),
            (self.failed_steps, report.failed_steps),
            (self.oom_caught, report.out_of_memory),
            (self.prefix_queries, report.prefix_queries_tokens),
            (self.prefix_hits, report.prefix_hits_tokens),
            (self.drafts, report.num_drafts),
            (self.draft_tokens, report.num_draft_tokens),
            (self.accepted_tokens, sum(report.accepted_per_position)),
            *zip(self.accepted_at, report.accepted_per_position, strict=False),
        ):
            if count:
                counter.inc(count)

    def note_admitted(self, inflight: InflightRequest) -> None:
        """A request was given to the core. One that goes on from another node was counted there."""
        self.frontend.observe(max(0.0, inflight.admitted_at - inflight.arrived_at))
        if not inflight.is_continued:
            self.admitted.inc()

    def note_scheduled(self, inflight: InflightRequest, choice: Choice) -> None:
        """A choice is computed for the first time."""
        if choice.scheduled_at is not None:
            self.queue_wait.observe(max(0.0, choice.scheduled_at - inflight.admitted_at))

    def note_tokens(self, inflight: InflightRequest, choice: Choice, num_tokens: int, now: float) -> None:
        """Tokens of one choice arrived from one step. Keeps the choice's and the request's token times."""
        if num_tokens == 0:
            return
        self.generation_tokens.inc(num_tokens)
        if choice.first_token_at is None:
            choice.first_token_at = now
            if choice.num_replayed_tokens == 0:  # else it is no first token to the user, and was prefilled before
                self.ttft.observe(now - inflight.arrived_at + inflight.elapsed_before_s)
                self._note_prompt(choice)
        elif choice.last_token_at is not None:
            self.itl.observe(now - choice.last_token_at)
        choice.last_token_at = now
        if inflight.first_token_at is None:
            inflight.first_token_at = now

    def note_closed(self, inflight: InflightRequest, choice: Choice, now: float) -> None:
        """One choice ended here."""
        failed = choice.error is not None or inflight.outcome is Fate.FAILED
        reason = choice.finish_reason or ("error" if failed else "abort")
        self.success.labels(**self._labels, finished_reason=reason).inc()
        self.e2e.observe(now - inflight.arrived_at + inflight.elapsed_before_s)
        self.request_prompt.observe(len(choice.prompt))
        if choice.sampling.max_tokens == 0 and choice.scheduled_at is not None:
            self._note_prompt(choice)  # prefilled, though no token follows
        self.request_generation.observe(len(choice.output_token_ids))
        self.asked_tokens.observe(choice.sampling.max_tokens)
        self.request_preemptions.observe(choice.num_preemptions)
        if choice.num_cached_tokens is not None:
            self.request_computed.observe(len(choice.prompt) - choice.num_cached_tokens)
        if choice.scheduled_at is not None:
            # As vLLM's: what was read and tokenised before is `engine_frontend_seconds`, and no queue.
            self.queue.observe(max(0.0, choice.scheduled_at - inflight.admitted_at))
            self.inference.observe(max(0.0, (choice.last_token_at or now) - choice.scheduled_at))
            if choice.first_token_at is not None:
                self.prefill.observe(max(0.0, choice.first_token_at - choice.scheduled_at))
        if choice.first_token_at is not None and choice.last_token_at is not None:
            decode_s = choice.last_token_at - choice.first_token_at
            self.decode.observe(decode_s)
            self.tpot.observe(decode_s / max(1, choice.num_own_tokens - 1))

    def _note_prompt(self, choice: Choice) -> None:
        cached = min(choice.num_cached_tokens or 0, len(choice.prompt))
        self.prompt_tokens.inc(len(choice.prompt))
        self.cached_tokens.inc(cached)
        for source, num_tokens in (("local_cache_hit", cached), ("local_compute", len(choice.prompt) - cached)):
            self.prompt_sources.labels(**self._labels, source=source).inc(num_tokens)

    def note_ended(self, inflight: InflightRequest, fate: Fate) -> None:
        """A request that was taken in ended here; of a moved one the node where it finishes tells more."""
        if fate is not Fate.MOVED:
            self.most_generation.observe(max(len(choice.output_token_ids) for choice in inflight.choices))
            self.asked_choices.observe(inflight.request.n)
        self.note_fate(fate)

    def note_fate(self, fate: Fate) -> None:
        """One request ended, also one that was never taken in."""
        self.fates.labels(state=fate.value).inc()

    def note_refused(self, reason: str, limit: str | None = None) -> None:
        """`limit`: of the queue, when that is full."""
        self.rejected.labels(reason=reason).inc()
        if limit is not None:
            self.queue_rejections.labels(model_name=self._model_name, reason=limit).inc()
        self.note_fate(Fate.REFUSED)

    def note_state(
        self,
        *,
        held: Sequence[InflightRequest],
        running: int,
        waiting: int,
        kv_ratio: float,
        drain: DrainState,
        readiness: Reason,
        sleep_level: int,
        limits: LiveLimits,
        now: float,
    ) -> None:
        """Sets the gauges that describe this moment; called before each scrape is answered."""
        step_limits = limits.for_core()
        self.limits.labels(limit="max_num_seqs").set(step_limits.max_num_seqs)
        self.limits.labels(limit="max_num_batched_tokens").set(step_limits.max_num_batched_tokens)
        chunk = step_limits.prefill_chunk_tokens or step_limits.max_num_batched_tokens
        self.limits.labels(limit="prefill_chunk_tokens").set(chunk)
        self.running.set(running)
        self.waiting.set(waiting)
        for reason, count in (
            ("capacity", waiting),
            ("deferred", 0),
        ):  # no adapters and no KV from elsewhere to wait for
            self.waiting_for.labels(**self._labels, reason=reason).set(count)
        self.kv_usage.set(kv_ratio)
        for state in DrainState:
            self.drain.labels(state=state.value).set(1 if state is drain else 0)
        for level, name in enumerate(SLEEP_STATES):
            self.sleep_state.labels(**self._labels, sleep_state=name).set(1 if level == sleep_level else 0)
        for one in Reason:
            self.node_state.labels(state=one.value).set(1 if one is readiness else 0)
        load = load_of(held)
        for stage in Stage:
            self.longest_prompt.labels(stage=stage.value).set(load.longest_prompts[stage])
        self.prefill_requests.set(load.prefill_requests)
        self.prefill_backlog.set(load.prefill_backlog_tokens)
        self.longest_output.set(load.longest_output_tokens)
        waited, worked = oldest_ages_s(held, now)
        self.oldest_waiting.set(waited or 0.0)
        self.oldest_running.set(worked or 0.0)
        self.tasks.set(len(asyncio.all_tasks()))

    def exposition(self) -> bytes:
        """The Prometheus text of all series."""
        return generate_latest(self.registry)
