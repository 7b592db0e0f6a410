"""Routes for probes, scrapers and the controller: health, metrics, info. Cheap and open."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from importlib.metadata import PackageNotFoundError, version

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from engine.config import NodeConfig
from engine.node.health import Reason, allowed_silence_s, silent_since
from engine.node.inflight import oldest_ages_s
from engine.node.metrics import CONTENT_TYPE
from engine.node.node import ServingNode
from engine.protocol.heartbeat import Heartbeat

DISTRIBUTION = "llm-fleetctl"


class StatusRoutes:
    """What a node tells of itself: it shows all parts, and changes none but the golden prompt's clock."""

    def __init__(self, node: ServingNode) -> None:
        self._node = node

    def routes(self) -> list[Route]:
        """For the application."""
        return [
            Route("/health", self.ready, methods=["GET"]),
            Route("/health/deep", self.deep, methods=["GET"]),
            Route("/health/live", self.live, methods=["GET"]),
            Route("/health/ready", self.ready, methods=["GET"]),
            Route("/ping", self.ready, methods=["GET", "POST"]),
            Route("/version", self.version, methods=["GET"]),
            Route("/metrics", self.metrics, methods=["GET"]),
            Route("/info", self.info, methods=["GET"]),
        ]

    async def live(self, request: Request) -> Response:
        """The API process answers; nothing else is asked."""
        return JSONResponse({"live": True, "since": self._node.started_at})

    async def ready(self, request: Request) -> Response:
        """200 when requests are taken, else 503; both with the reason."""
        reason, report = self._readiness()
        return JSONResponse(report, 200 if reason is Reason.READY else 503)

    async def deep(self, request: Request) -> Response:
        """Readiness with its reasons: progress against what was planned, and the golden prompt. May start a run of the
        latter, at the lowest priority and at most once a minute, and shows the last result at once."""
        node = self._node
        reason, report = self._readiness()
        if reason in (Reason.READY, Reason.WRONG_OUTPUT):
            node.golden.request_run(time.monotonic())
        running, waiting = node.counts()
        report["progress"] = _progress(node.core.heartbeat(), time.monotonic())
        waited, worked = oldest_ages_s(node.requests.held, time.monotonic())
        report["work"] = {
            "running": running,
            "waiting": waiting,
            "oldest_waiting_s": waited,
            "oldest_running_s": worked,
        }
        report["golden"] = node.golden.report(time.time())
        return JSONResponse(report, 200 if reason is Reason.READY else 503)

    def _readiness(self) -> tuple[Reason, dict[str, object]]:
        node = self._node
        reason, now = node.health.judge(), time.monotonic()
        report = node.health.report()
        if reason in (Reason.LOADING, Reason.WARMING_UP) and node.core.progress is not None:
            report["progress_ratio"] = node.core.progress.done
        if reason is Reason.CORE_DEAD:
            report |= {"detail": node.core.error, "restart": node.core.starts.report(now)}
        if reason is Reason.CORE_STUCK:
            report |= {"detail": node.health.stuck_detail(now), "progress": _progress(node.core.heartbeat(), now)}
        if reason is Reason.WRONG_OUTPUT:
            report["detail"] = node.golden.detail
        return reason, report

    async def version(self, request: Request) -> Response:
        """Of the engine."""
        return JSONResponse({"version": package_version()})

    async def metrics(self, request: Request) -> Response:
        """Classic text whatever the Accept header asks for, as vLLM does."""
        return Response(self._node.exposition(), headers={"Content-Type": CONTENT_TYPE})

    async def info(self, request: Request) -> Response:
        """What this node is, and the limits in force."""
        node = self._node
        config, core, model, limits = node.config, node.core, node.model, node.limits.now
        return JSONResponse(
            {
                "name": config.node_name,
                "engine": "fleet",
                "version": package_version(),
                "model": config.model_name,
                "served_model_names": list(config.served_model_names),
                "revision": config.revision,
                "model_revision": model.facts.revision,
                "pool": config.pool,
                "zone": config.zone,
                "pid": os.getpid(),
                "started_at": node.started_at,
                "state": node.health.judge().value,
                "runner": config.runner,
                "device": None if core.ready is None else core.ready.device,
                "dtype": None if core.ready is None else core.ready.dtype,
                "kv_cache_dtype": None if core.ready is None else core.ready.kv_cache_dtype,
                "sampling_defaults": asdict(model.facts.sampling),
                "kv_capacity_tokens": core.kv_capacity_tokens,
                "limits": {
                    "max_model_len": model.max_sequence_tokens,
                    "max_num_seqs": limits.max_num_seqs,
                    "max_num_batched_tokens": limits.max_num_batched_tokens,
                    "max_num_queued_reqs": limits.max_num_queued_reqs,
                    "max_num_queued_tokens": node.admission.max_queued_tokens,
                    "max_output_tokens": config.max_output_tokens,
                },
                "speculation": _speculation(config),
                "task": "generate" if model.pooling is None else model.pooling.task,
                "pooling": None if model.pooling is None else asdict(model.pooling),
                "faults_enabled": config.enable_faults,
            }
        )


def _speculation(config: NodeConfig) -> dict[str, object] | None:
    """How tokens are proposed; None: they are not."""
    if config.speculation == "off":
        return None
    own: dict[str, object] = {"draft_model": None if config.draft_model_dir is None else config.draft_model_dir.name}
    if config.speculation == "ngram":
        own = {"prompt_lookup_min": config.prompt_lookup_min, "prompt_lookup_max": config.prompt_lookup_max}
    return {
        "method": config.speculation,
        "num_speculative_tokens": config.num_speculative_tokens,
        "is_adaptive": config.adaptive_speculation,
        **own,
    }


def _progress(heartbeat: Heartbeat | None, now: float) -> dict[str, object] | None:
    """What the core does now and how long it may; None while there is no core."""
    if heartbeat is None:
        return None
    return {
        "state": heartbeat.state.name.lower(),
        "for_s": round(max(0.0, now - heartbeat.at), 3),
        "silent_s": round(max(0.0, now - silent_since(heartbeat)), 3),
        "allowed_s": round(allowed_silence_s(heartbeat), 3),
        "step_id": heartbeat.step_id,
        "predicted_s": heartbeat.predicted_s,
        "sequences": heartbeat.num_seqs,
        "tokens": heartbeat.num_tokens,
        "context_tokens": heartbeat.context_tokens,
    }


def package_version() -> str:
    """Of the installed distribution."""
    try:
        return version(DISTRIBUTION)
    except PackageNotFoundError:  # run from a checkout that is not installed
        return "unknown"
