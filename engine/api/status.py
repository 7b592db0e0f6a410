"""Routes for probes, scrapers and the controller: health, metrics, info. Cheap and open."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.node.health import Reason, allowed_silence_s
from engine.node.inflight import oldest_ages_s
from engine.node.metrics import CONTENT_TYPE
from engine.node.node import Node
from engine.protocol.heartbeat import Heartbeat

DISTRIBUTION = "llm-fleetctl"


def routes() -> list[Route]:
    return [
        Route("/health", ready, methods=["GET"]),
        Route("/health/deep", deep, methods=["GET"]),
        Route("/health/live", live, methods=["GET"]),
        Route("/health/ready", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/info", info, methods=["GET"]),
    ]


async def live(request: Request) -> Response:
    node: Node = request.app.state.node
    return JSONResponse({"live": True, "since": node.started_at})


async def ready(request: Request) -> Response:
    reason, report = _readiness(request.app.state.node)
    return JSONResponse(report, 200 if reason is Reason.READY else 503)


async def deep(request: Request) -> Response:
    """Readiness with its reasons: progress against what was planned, and the golden prompt. May start a run of the
    latter, at the lowest priority and at most once a minute, and shows the last result at once."""
    node: Node = request.app.state.node
    reason, report = _readiness(node)
    if reason in (Reason.READY, Reason.WRONG_OUTPUT):
        node.golden.ask(time.monotonic())
    running, waiting = node.counts()
    report["progress"] = _progress(node.core.heartbeat(), time.monotonic())
    waited, worked = oldest_ages_s(node.flights, time.monotonic())
    report["work"] = {
        "running": running,
        "waiting": waiting,
        "oldest_waiting_s": waited,
        "oldest_running_s": worked,
    }
    report["golden"] = node.golden.report(time.time())
    return JSONResponse(report, 200 if reason is Reason.READY else 503)


def _progress(heartbeat: Heartbeat | None, now: float) -> dict[str, object] | None:
    """What the core does now and how long it may; None while there is no core."""
    if heartbeat is None:
        return None
    return {
        "state": heartbeat.state.name.lower(),
        "for_s": round(max(0.0, now - heartbeat.at), 3),
        "allowed_s": round(allowed_silence_s(heartbeat), 3),
        "step_id": heartbeat.step_id,
        "predicted_s": heartbeat.predicted_s,
        "sequences": heartbeat.num_seqs,
        "tokens": heartbeat.num_tokens,
        "context_tokens": heartbeat.context_tokens,
    }


def _readiness(node: Node) -> tuple[Reason, dict[str, object]]:
    reason = node.judge_health()
    report = node.health.report(time.time())
    core = node.core
    if reason in (Reason.LOADING, Reason.WARMING_UP) and core.progress is not None:
        report["progress_ratio"] = core.progress.done
    if reason is Reason.CORE_DEAD and core.error is not None:
        report["detail"] = core.error
    if reason is Reason.WRONG_OUTPUT:
        report["detail"] = node.golden.detail
    return reason, report


async def metrics(request: Request) -> Response:
    """Classic text whatever the Accept header asks for, as vLLM does."""
    node: Node = request.app.state.node
    return Response(node.exposition(), headers={"Content-Type": CONTENT_TYPE})


async def info(request: Request) -> Response:
    node: Node = request.app.state.node
    config, core = node.config, node.core
    return JSONResponse(
        {
            "name": config.node_name,
            "engine": "fleet",
            "version": package_version(),
            "model": config.model_name,
            "served_model_names": list(config.served_model_names),
            "revision": config.revision,
            "model_revision": node.facts.revision,
            "pool": config.pool,
            "zone": config.zone,
            "pid": os.getpid(),
            "started_at": node.started_at,
            "state": node.judge_health().value,
            "runner": config.runner,
            "device": None if core.ready is None else core.ready.device,
            "dtype": None if core.ready is None else core.ready.dtype,
            "sampling_defaults": asdict(node.facts.sampling),
            "kv_capacity_tokens": core.kv_capacity_tokens,
            "limits": {
                "max_model_len": node.max_sequence_tokens,
                "max_num_seqs": node.limits.max_num_seqs,
                "max_num_batched_tokens": node.limits.max_num_batched_tokens,
                "max_num_queued_reqs": node.limits.max_num_queued_reqs,
                "max_num_queued_tokens": node.queue.max_tokens(node.limits, core.kv_capacity_tokens or 0),
                "max_output_tokens": config.max_output_tokens,
            },
            "faults_enabled": config.enable_faults,
        }
    )


def package_version() -> str:
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
