"""Which grammars of clients compile: tried one after the other in the grammar helper process, verdicts kept.

Nothing that a client sends is compiled in this process, and only what survived its trial reaches the engine core. The
helper is started by the first grammar and again whenever it is gone. Clients share it fairly (`fair_queue.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import socket
import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import structlog

from engine.node.fair_queue import FairQueue
from engine.node.refusal import RefusedError
from engine.protocol.frames import FrameError, FrameStream
from engine.protocol.grammar import BadGrammarError, GrammarSource
from engine.protocol.grammar_trial import GrammarHelperConfig, TrialEnded, TrialResult

log = structlog.get_logger()

MAX_WAITING = 32  # trials; each may take tenths of a second
MAX_VERDICTS = 256  # with their grammars, of at most 256 kB each
HELPER_START_S = 60.0  # the tokenizer of a large model, on a machine that is busy loading its weights
ANSWER_GRACE_S = 5.0  # beside the limit of a trial, which the helper keeps by itself
_COMMAND = (sys.executable, "-m", "engine", "grammar-helper")


class HelperLostError(Exception):
    """The helper could not be started, or is gone: it says nothing of the grammar."""


class GrammarHelper:
    """One helper process at a time. Threading: event loop only; one trial at a time."""

    def __init__(self, config: GrammarHelperConfig, command: Sequence[str] = _COMMAND) -> None:
        self.config = config
        self._command = command
        self._process: asyncio.subprocess.Process | None = None
        self._stream: FrameStream[TrialEnded] | None = None

    @property
    def pid(self) -> int | None:
        """None while there is none."""
        return None if self._process is None else self._process.pid

    async def run_trial(self, source: GrammarSource) -> TrialEnded:
        """How the grammar's trial ended. Raises HelperLostError, and the next trial starts another helper."""
        limit_s = self.config.max_wall_s + ANSWER_GRACE_S
        try:
            if self._stream is None:
                limit_s += HELPER_START_S
                self._stream = await self._start()
            async with asyncio.timeout(limit_s):
                self._stream.send(source)
                ended = await self._stream.receive()
        except (OSError, FrameError, TimeoutError) as error:
            await self.stop()
            raise HelperLostError(f"{type(error).__name__}: {error}") from error
        except BaseException:
            await self.stop()  # an answer that nobody awaits would be taken for the next one's
            raise
        if ended is None:
            code = await self.stop()
            raise HelperLostError(f"it ended with {code}")
        return ended

    async def _start(self) -> FrameStream[TrialEnded]:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    *("--fd", str(theirs.fileno()), "--config", msgspec.json.encode(self.config).decode()),
                    stdin=asyncio.subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    # One thread: a process that forks may have no other.
                    env={**os.environ, "TOKENIZERS_PARALLELISM": "false", "OPENBLAS_NUM_THREADS": "1"},
                )
            stream = await FrameStream[TrialEnded].open(ours, TrialEnded)
        except BaseException:
            ours.close()
            raise
        log.info("grammar.helper_started", helper_pid=self._process.pid)
        return stream

    async def stop(self) -> int | None:
        """Ends the helper, if there is one; returns its exit code."""
        process, stream = self._process, self._stream
        self._process = self._stream = None
        if stream is not None:
            await stream.close()
        if process is None:
            return None
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        return await process.wait()


class _Verdict(NamedTuple):
    """On one source: its grammar, or why it is none."""

    grammar: str | None
    reason: str = ""

    def get(self) -> str:
        if self.grammar is None:
            raise BadGrammarError(self.reason)
        return self.grammar


@dataclass(slots=True, eq=False)
class _Waiting:
    """One request's grammar."""

    source: GrammarSource
    verdict: asyncio.Future[_Verdict]


class GrammarTrials:
    """Owner of the helper, the queue before it and the verdicts. Threading: event loop only."""

    def __init__(self, helper: GrammarHelper, *, on_trial: Callable[[TrialResult], None] = lambda result: None) -> None:
        """`on_trial` hears how each trial ended."""
        self._helper = helper
        self._on_trial = on_trial
        self._queue: FairQueue[_Waiting] = FairQueue(MAX_WAITING)
        self._verdicts: OrderedDict[bytes, _Verdict] = OrderedDict()
        self._work: asyncio.Task[None] | None = None

    async def compiled(self, source: GrammarSource, client: str) -> str:
        """The grammar, which is known to compile. `client` is whose share of the helper it takes.

        Raises BadGrammarError: it does not; RefusedError: too many wait, or there is no helper to be had.
        """
        known = self._known(source)
        if known is not None:
            return known.get()
        waiting = _Waiting(source, asyncio.get_running_loop().create_future())
        dropped = self._queue.push(client, waiting)
        if dropped is not None:
            _settle(dropped.verdict, RefusedError("overloaded", f"{MAX_WAITING} grammars wait to be compiled", 1))
        if self._work is None or self._work.done():
            self._work = asyncio.create_task(self._try_all(), name="grammar-trials")
        return (await waiting.verdict).get()

    async def close(self) -> None:
        """Ends the helper."""
        if self._work is not None:
            self._work.cancel()
            await asyncio.wait((self._work,))
        await self._helper.stop()

    async def _try_all(self) -> None:
        while self._queue:
            client, waiting = self._queue.pop()
            if waiting.verdict.done():  # nobody waits for it any more
                continue
            started_at = time.monotonic()
            try:
                _settle(waiting.verdict, await self._verdict(waiting.source))
            except HelperLostError as error:
                log.error("grammar.helper_lost", reason=str(error))
                message = f"this node's grammar compiler can't be had: {error}"
                _settle(waiting.verdict, RefusedError("not_ready", message, 1))
            except Exception as error:
                log.error("grammar.trial_broken", exc_info=error)
                _settle(waiting.verdict, error)
            finally:
                self._queue.charge(client, time.monotonic() - started_at)

    async def _verdict(self, source: GrammarSource) -> _Verdict:
        known = self._known(source)
        if known is not None:
            return known
        try:
            ended = await self._helper.run_trial(source)
        except HelperLostError as error:  # not the grammar's doing: that is tried in a child of the helper
            log.warning("grammar.helper_restarted", reason=str(error))
            ended = await self._helper.run_trial(source)
        self._on_trial(ended.result)
        digest = _digest(source)
        if ended.result not in (TrialResult.COMPILED, TrialResult.REFUSED):
            log.error(
                "grammar.trial_failed",
                result=ended.result.value,
                reason=ended.reason,
                source_chars=len(source.text),
                source_sha256=digest.hex()[:16],
                seconds=round(ended.seconds, 3),
            )
        verdict = _Verdict(ended.grammar, ended.reason)
        if ended.result is not TrialResult.TIME_LIMIT:  # which a stopped machine reaches as well
            self._verdicts[digest] = verdict
            if len(self._verdicts) > MAX_VERDICTS:
                self._verdicts.popitem(last=False)
        return verdict

    def _known(self, source: GrammarSource) -> _Verdict | None:
        """The verdict on a source that was tried before."""
        digest = _digest(source)
        if digest in self._verdicts:
            self._verdicts.move_to_end(digest)
        return self._verdicts.get(digest)


def _digest(source: GrammarSource) -> bytes:
    return hashlib.sha256(f"{source.kind} {source.text}".encode()).digest()


def _settle(verdict: asyncio.Future[_Verdict], result: _Verdict | Exception) -> None:
    if verdict.done():
        return
    if isinstance(result, Exception):
        verdict.set_exception(result)
    else:
        verdict.set_result(result)
