"""The engine core process: loads a model, warms up, then runs the step loop until its API process goes.

Started as `python -m engine core --fd N --config JSON`; `fd` is one end of a Unix socketpair. Terminal signals are
the API process's business: it drains first and then tells the core, so the core ignores SIGINT and SIGTERM. It can't
outlive its parent: the kernel kills it when that dies, and an end of the connection ends it too.
"""

from __future__ import annotations

import argparse
import gc
import os
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import structlog

from engine.core.grammar_queue import GrammarCompiled
from engine.core.host_tuning import return_freed_memory
from engine.core.runner_loader import load_runner
from engine.core.scheduler import Scheduler
from engine.core.step_loop import StepLoop
from engine.log import configure_logging
from engine.parent_death import die_with_parent
from engine.protocol.clock import SystemMonotonicClock
from engine.protocol.core_config import CoreConfig, read_config
from engine.protocol.frames import ConnectionClosed, FrameSocket, start_reader
from engine.protocol.golden_prompt import golden_sequence
from engine.protocol.heartbeat import HeartbeatPage
from engine.protocol.messages import CoreFailed, CoreProgress, CoreReady, FromCore, LoadPhase, ToCore

__all__ = ["CoreConfig", "main"]

log = structlog.get_logger()

EXIT_FAILED = 1
EXIT_ORPHANED = 3
_ORPHAN_GRACE_S = 5.0  # a step or a load in progress may take this long after the API process is gone
_MIN_PROGRESS = 0.01  # smaller advances are not worth a message


def main(argv: Sequence[str]) -> int:
    """Run one core; returns the exit code. `argv` is what follows `core` on the command line."""
    parser = argparse.ArgumentParser(prog="python -m engine core", description="Started by `serve`, not by people.")
    parser.add_argument("--fd", type=int, required=True, help="socket to the API process")
    parser.add_argument("--heartbeat-fd", type=int, help="page of memory for signs of life")
    parser.add_argument("--config", required=True, metavar="JSON", help="a CoreConfig")
    args = parser.parse_args(argv)
    try:
        config = read_config(args.config)
        heartbeats = HeartbeatPage.private() if args.heartbeat_fd is None else HeartbeatPage.open(args.heartbeat_fd)
        frames = _open_frames(args.fd)
    except ValueError as error:
        parser.error(str(error))
    configure_logging(level=config.log_level, process="core")
    die_with_parent()
    gc.disable()  # until it is ready: torch and the compiler make a million objects that stay
    try:
        return _serve(config, frames, heartbeats)
    except OSError as error:
        # Publishing failed: nobody is left to tell.
        log.warning("core.orphaned", reason=str(error))
        return EXIT_ORPHANED
    finally:
        gc.enable()
        frames.close()


def _serve(config: CoreConfig, frames: FrameSocket[ToCore], heartbeats: HeartbeatPage) -> int:
    inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()  # `ToCore`, `ConnectionClosed` and `GrammarCompiled`
    start_reader(frames, inbox, on_closed=_exit_soon)
    try:
        loop, ready = _start(config, inbox, frames.send, heartbeats)
    except OSError as error:
        if isinstance(error, BrokenPipeError | ConnectionResetError):
            raise
        return _fail(frames, f"{type(error).__name__}: {error}", error)
    except Exception as error:  # noqa: BLE001 - whatever is wrong, the API process must hear why
        return _fail(frames, f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}", error)
    frames.send(ready)
    try:
        return loop.run_until_shutdown()
    except OSError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of the core itself: say so and end, a new core starts clean
        return _fail(frames, f"defect in the core: {type(error).__name__}: {error}", error)


def _start(
    config: CoreConfig,
    inbox: queue.SimpleQueue[ToCore | ConnectionClosed | GrammarCompiled],
    publish: Callable[[FromCore], None],
    heartbeats: HeartbeatPage,
) -> tuple[StepLoop, CoreReady]:
    """Load, warm up and answer the golden prompt: a loop that is ready to run, and the message that says so."""
    clock = SystemMonotonicClock()
    started_at = clock.now()
    progress = _Progress(publish)
    progress("loading", 0.0)
    model = load_runner(config, progress, heartbeats.progress_memory())
    loaded_at = clock.now()
    progress("warming_up", 0.0)
    model.runner.warm_up()
    if model.limits.speculation is not None:
        log.info("speculation.on", **asdict(model.limits.speculation), draft_model=config.draft_model_dir)
    scheduler = Scheduler(model.limits)
    loop = StepLoop(
        scheduler,
        model.runner,
        inbox,
        publish,
        clock,
        enable_faults=config.enable_faults,
        heartbeats=heartbeats,
        grammars=model.grammars,
    )
    golden = loop.warm_up(golden_sequence(model.limits.vocab_size or 1, model.limits.max_tokens, clock.now()))
    progress("warming_up", 1.0)
    gc.collect()
    gc.freeze()  # they are never looked through again
    gc.enable()
    return_freed_memory()  # what loading, packing and compiling needed: as much as the weights, and more
    return loop, CoreReady(
        num_kv_blocks=model.limits.num_blocks,
        block_size=model.limits.block_size,
        max_model_len=model.limits.max_model_len,
        device=model.device,
        dtype=model.dtype,
        load_seconds=loaded_at - started_at,
        warmup_seconds=clock.now() - loaded_at,
        golden=golden,
        num_host_blocks=model.limits.num_host_blocks,
        kv_cache_dtype=model.kv_cache_dtype,
        rounding=model.rounding,
        kv_cache_bytes=model.kv_bytes,
    )


def _fail(frames: FrameSocket[ToCore], reason: str, error: Exception) -> int:
    log.error("core.failed", reason=reason, exc_info=error)
    frames.send(CoreFailed(reason))
    return EXIT_FAILED


class _Progress:
    """Passes progress of loading on, as often as somebody may want to see it."""

    def __init__(self, publish: Callable[[FromCore], None]) -> None:
        self._publish = publish
        self._phase: LoadPhase | None = None
        self._done = 0.0

    def __call__(self, phase: str, done: float) -> None:
        # "verifying" checksums is part of loading to everyone outside
        known = LoadPhase.WARMING_UP if phase == LoadPhase.WARMING_UP else LoadPhase.LOADING
        if known is not self._phase or abs(done - self._done) >= _MIN_PROGRESS:
            self._phase, self._done = known, done
            self._publish(CoreProgress(known, min(1.0, max(0.0, done))))


def _open_frames(fd: int) -> FrameSocket[ToCore]:
    try:
        sock = socket.socket(fileno=fd)
    except OSError as error:
        raise ValueError(f"--fd {fd}: not a socket ({error.strerror})") from error
    sock.set_inheritable(False)  # a child that keeps it open would hide the core's death
    return FrameSocket(sock, ToCore)


def _exit_soon() -> None:
    """Ends the process even when a step or a load never comes back to look at the inbox."""
    timer = threading.Timer(_ORPHAN_GRACE_S, os._exit, args=(EXIT_ORPHANED,))
    timer.daemon = True
    timer.start()
