"""`python -m engine serve`: one node from start to exit.

Order of a start: check options, model directory and port (bad input ends here, in one line, with nothing started);
listen, so that probes get an answer; start the core. Order of a stop: drain, core, server.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
import uvicorn
import uvloop

from engine.api.app import build_app
from engine.api.connection import protocol_with
from engine.config import BadConfigError, NodeConfig
from engine.gpu.series import GpuCollector
from engine.gpu.watch import GpuWatch
from engine.node.drain import DrainControl
from engine.node.generation_config import FILE as GENERATION_CONFIG
from engine.node.inflight import NODE_STOPPING, InflightRequest
from engine.node.metrics import NodeMetrics
from engine.node.node import ServingNode
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ModelFacts, read_model_facts
from engine.protocol.core_config import CoreConfig
from engine.protocol.golden_prompt import BadGoldenFileError, GoldenAnswerFile
from engine.start_report import show_loading, start_lines, what_limits
from engine.text.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from engine.node.tracing import Tracing

log = structlog.get_logger()

HEALTH_TICK_S = 0.5
CLOSE_GRACE_S = 5  # for connections that are still being written to
BACKLOG = 2048
FLUSH_GRACE_S = 3.0  # for spans that are not sent yet
LOOPBACK = ("127.0.0.1", "::1", "localhost")
HANDOFF_GRACE_S = 5.0  # after the drain's deadline, for hand-offs to be written
KEEP_ALIVE_S = 75  # longer than a gateway's idle connections live, so that the gateway closes first


class StartError(Exception):
    """The node can't run here; the message says why. Not the input's fault."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: the node decides when to stop."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def serve(config: NodeConfig) -> None:
    """Runs a node until it is told to stop.

    Raises BadConfigError, BadModelError, BadTokenizerError before anything is started, StartError for a port in use
    and for a core that can't start.
    """
    if config.golden_file is not None:
        _check_golden(config.golden_file)
    tokenizer = load_tokenizer(config.model_dir)
    facts = read_model_facts(config, tokenizer)
    config = replace(config, num_speculative_tokens=facts.num_speculative_tokens)
    core_config = core_config_of(config, facts)
    metrics = NodeMetrics(
        model_name=config.model_name,
        max_model_len=facts.max_model_len,
        num_speculative_tokens=0 if config.speculation == "off" else config.num_speculative_tokens,
    )
    listener = _listen(config.host, config.port)
    _warn_of_exposure(config)
    with contextlib.closing(listener):
        if changes := facts.sampling.changes():
            log.info("node.sampling_defaults", source=GENERATION_CONFIG, **changes)
        tracing = _start_tracing(config, facts)
        node = ServingNode(config, core_config, tokenizer, facts, metrics, tracing)
        gpus = GpuWatch(config.gpu_poll_s)
        metrics.registry.register(GpuCollector(gpus.snapshot))
        gpus.start()
        try:
            uvloop.run(_run(node, listener))
        finally:
            gpus.stop()
            if tracing is not None:
                tracing.close(FLUSH_GRACE_S)


def _start_tracing(config: NodeConfig, facts: ModelFacts) -> Tracing | None:
    if config.traces_endpoint is None:
        return None
    try:
        from engine.node.tracing import Tracing  # half a second and 20 MB that most nodes need not spend
    except ImportError as error:
        raise BadConfigError(f"--otlp-traces-endpoint: {error}; install llm-fleetctl[engine]") from error
    return Tracing(
        config.traces_endpoint,
        {
            "service.instance.id": config.node_name,
            "fleet.pool": config.pool,
            "fleet.zone": config.zone,
            "fleet.revision": config.revision,
            "fleet.model.revision": facts.revision or "",
        },
    )


def _check_golden(path: Path) -> None:
    try:
        GoldenAnswerFile(path).read()
    except BadGoldenFileError as error:
        raise BadConfigError(f"--golden-file {error}") from error


def core_config_of(config: NodeConfig, facts: ModelFacts) -> CoreConfig:
    """What the core is started with; no secret is in it."""
    return CoreConfig(
        model_dir=str(config.model_dir),
        runner=config.runner,
        dtype=config.dtype,
        quantization=config.quantization,
        calibration=config.calibration,
        kv_cache_dtype=config.kv_cache_dtype,
        enforce_eager=config.enforce_eager,
        num_threads=config.num_threads,
        block_size=config.block_size,
        num_kv_blocks=config.num_kv_blocks,
        kv_cache_bytes=config.kv_cache_memory_bytes,
        memory_utilization=config.memory_utilization,
        swap_space_bytes=int(config.swap_space_gib * 2**30),
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_model_len=facts.max_model_len,
        prefix_caching=config.prefix_caching,
        chunked_prefill=config.chunked_prefill,
        prefill_chunk_tokens=config.prefill_chunk_tokens,
        speculation=config.speculation,
        draft_model_dir=None if config.draft_model_dir is None else str(config.draft_model_dir),
        num_speculative_tokens=config.num_speculative_tokens,
        prompt_lookup_min=config.prompt_lookup_min,
        prompt_lookup_max=config.prompt_lookup_max,
        adaptive_speculation=config.adaptive_speculation,
        vocab_size=facts.vocab_size,
        eos_token_ids=facts.eos_token_ids,
        enable_faults=config.enable_faults,
        log_level=config.log_level,
    )


def _warn_of_exposure(config: NodeConfig) -> None:
    if os.geteuid() == 0:
        log.warning("node.runs_as_root", remedy="it needs no right but to read its model")
    if config.host not in LOOPBACK and not config.api_keys:
        log.warning("node.open_to_network", host=config.host, remedy="--api-key-file, or --host 127.0.0.1")


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sends what is written at once (TCP_NODELAY) only on sockets that name their protocol; else a token would
    # wait for the client's word on the one before.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as exc:
        listener.close()
        raise StartError(f"can't listen on {host}:{port}: {exc.strerror}; choose another --port") from exc
    listener.setblocking(False)
    return listener


async def _run(node: ServingNode, listener: socket.socket) -> None:
    stop = asyncio.Event()
    _handle_signals(node, stop)
    config = uvicorn.Config(
        build_app(node),
        http=protocol_with(node.config.body_timeout_s),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_GRACE_S,
        backlog=BACKLOG,
    )
    server = _Server(config)
    host, port = listener.getsockname()[:2]
    url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    log.info("node.listening", url=url, pid=os.getpid())
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="http")
    core = asyncio.create_task(node.core.keep_running(), name="core")
    helpers = [
        asyncio.create_task(_announce(node, url), name="announce"),
        asyncio.create_task(_watch_health(node), name="health"),
    ]
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait((serving, core, stopping), return_when=asyncio.FIRST_COMPLETED)
    try:
        if stop.is_set():
            log.info("node.stopping", drain_timeout_s=node.config.drain_timeout_s)
            await _stop_serving(node.drain, node.requests, node.config.drain_timeout_s)
        elif core.done():
            raise StartError(f"the engine core can't start: {node.core.error}") from core.exception()
    finally:
        for task in helpers:
            task.cancel()
        await node.grammars.close()
        await node.core.stop()
        core.cancel()
        await asyncio.wait((core,))
        server.should_exit = True
        await serving
        log.info("node.stopped")


async def _stop_serving(drain: DrainControl, requests: RequestRegistry, drain_timeout_s: float) -> None:
    """Drains; at the deadline moves what can be moved and ends the rest with an error. Nothing is held after."""
    deadline_at = drain.deadline_at
    left_s = None if deadline_at is None else max(0.0, deadline_at - time.time())
    deadline_s = drain_timeout_s if left_s is None else min(drain_timeout_s, left_s)
    drain.begin_drain(deadline_s)
    if await requests.is_empty_within(deadline_s):
        return
    requests.hand_off()
    _fail_requests(requests, [f for f in requests.held if not f.accepts_handoff])
    if await requests.is_empty_within(HANDOFF_GRACE_S):
        return
    _fail_requests(requests, list(requests.held))
    if not await requests.is_empty_within(HANDOFF_GRACE_S):
        log.warning("node.requests_cut", count=len(requests.held))


def _fail_requests(requests: RequestRegistry, held: Iterable[InflightRequest]) -> None:
    for inflight in held:
        requests.fail(inflight, "the node is stopping", NODE_STOPPING)


def _handle_signals(node: ServingNode, stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if not stop.is_set():
            stop.set()
            return
        log.warning("node.stopped_at_once", signal=signal.Signals(number).name)
        node.core.kill()
        os._exit(128 + number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)


async def _announce(node: ServingNode, url: str) -> None:
    is_terminal = sys.stderr.isatty()
    if is_terminal:
        await show_loading(node.core)
    await node.core.first_ready.wait()
    ready = node.core.ready
    assert ready is not None
    node.health.judge()
    capacity = ready.num_kv_blocks * ready.block_size
    log.info(
        "node.ready",
        url=url,
        model=node.config.model_name,
        device=ready.device,
        dtype=ready.dtype,
        kv_cache_dtype=ready.kv_cache_dtype,
        kv_capacity_tokens=capacity,
        kv_cache_bytes=ready.kv_cache_bytes,
        max_model_len=ready.max_model_len,
        max_concurrency_at_max_len=round(capacity / ready.max_model_len, 2),
        limited_by=what_limits(node.config, ready),
    )
    if capacity < ready.max_model_len:
        log.warning("node.kv_limits_length", longest_sequence_tokens=capacity)
    if is_terminal:
        sys.stderr.write(start_lines(node.config, ready, url))


async def _watch_health(node: ServingNode) -> None:
    """Changes of health are logged also when nobody probes."""
    while True:
        node.health.tick(time.monotonic())
        await asyncio.sleep(HEALTH_TICK_S)
