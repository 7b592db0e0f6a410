"""The grammar helper process: compiles each grammar of a client for the first time, in a child that may die of it.

The compiler is native code. What makes it overflow its stack, abort or spin can't be known beforehand, and would take
the API process or the engine core with it. The helper itself touches no client's grammar: it loads the tokenizer once,
forks a child for each trial, with limits on memory, stack and CPU time that the kernel enforces, and says how it ended.

Started as `python -m engine grammar-helper --fd N --config JSON`; it ends with its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import select
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from engine.log import configure_logging
from engine.parent_death import die_with_parent
from engine.protocol.frames import FrameError, FrameSocket
from engine.protocol.grammar import BadGrammarError, GrammarSource, json_grammar, regex_grammar
from engine.protocol.grammar_trial import GrammarHelperConfig, TrialEnded, TrialResult
from engine.text.grammar_compiler import GrammarCompiler
from engine.text.tokenizer import load_tokenizer

log = structlog.get_logger()

_COMPILED = b"+"
_REFUSED = b"-"
_STATM = Path("/proc/self/statm")


def main(argv: Sequence[str]) -> int:
    """Serves trials until the API process closes the connection; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m engine grammar-helper", description="Started by `serve`.")
    parser.add_argument("--fd", type=int, required=True, help="socket to the API process")
    parser.add_argument("--config", required=True, metavar="JSON", help="a GrammarHelperConfig")
    args = parser.parse_args(argv)
    try:
        config = msgspec.json.decode(args.config, type=GrammarHelperConfig)
        sock = socket.socket(fileno=args.fd)
    except (msgspec.DecodeError, OSError) as error:
        parser.error(str(error))
    sock.set_inheritable(False)
    configure_logging(level=config.log_level, process="grammar-helper")
    die_with_parent()
    with sock, contextlib.suppress(OSError):  # nobody is left to answer
        serve_trials(FrameSocket(sock, GrammarSource), config)
    return 0


def serve_trials(frames: FrameSocket[GrammarSource], config: GrammarHelperConfig) -> None:
    """Answers each `GrammarSource` with a `TrialEnded`, until the other side is gone. Raises OSError then, too."""
    compiler = _warm_compiler(config)
    try:
        while (source := frames.receive()) is not None:
            started_at = time.monotonic()
            ended = run_trial(compiler, source, config)
            frames.send(msgspec.structs.replace(ended, seconds=time.monotonic() - started_at))
    except FrameError as error:
        log.error("grammar.helper_garbled", reason=str(error))


def _warm_compiler(config: GrammarHelperConfig) -> GrammarCompiler:
    """With all that a first grammar loads lazily, so that no child has to."""
    directory = Path(config.model_dir)
    compiler = GrammarCompiler(
        lambda: load_tokenizer(directory), vocab_size=config.vocab_size, eos_token_ids=config.eos_token_ids
    )
    try:
        compiler.compile(json_grammar({"type": "object"}))
        compiler.compile(regex_grammar("[a-z]+"))
    except BadGrammarError as error:
        log.warning("grammar.helper_not_warm", reason=str(error))  # each trial will say the same to its client
    return compiler


def run_trial(compiler: GrammarCompiler, source: GrammarSource, config: GrammarHelperConfig) -> TrialEnded:
    """Builds and compiles the grammar in a child of this process. Threading: this process may have no other thread.

    Raises OSError when there is no child to be had.
    """
    reading, writing = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            _try_and_exit(compiler, source, config, writing)
    finally:
        os.close(writing)
    with os.fdopen(reading, "rb", buffering=0) as pipe:
        is_late = not select.select((pipe,), (), (), config.max_wall_s)[0]
        if is_late:
            os.kill(pid, signal.SIGKILL)
        said = b"" if is_late else pipe.read()
    status = os.waitpid(pid, 0)[1]
    return _told(said, status, is_late=is_late, config=config)


def _try_and_exit(compiler: GrammarCompiler, source: GrammarSource, config: GrammarHelperConfig, writing: int) -> None:
    """The child: never returns."""
    try:
        _limit_self(config)
        try:
            grammar = source.build()
            compiler.compile(grammar)
            said = _COMPILED + grammar.encode()
        except BadGrammarError as error:
            said = _REFUSED + str(error).encode(errors="replace")
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(said)
    except BaseException:  # noqa: BLE001  a panic of the compiler is no Exception; silence says that it crashed
        os._exit(1)
    os._exit(0)


def _limit_self(config: GrammarHelperConfig) -> None:
    die_with_parent()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 2)  # last words of native code may quote the client's schema
    mapped_bytes = int(_STATM.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (config.max_cpu_s, config.max_cpu_s + 1))
    resource.setrlimit(resource.RLIMIT_STACK, (config.max_stack_bytes, config.max_stack_bytes))
    limit_bytes = mapped_bytes + config.max_memory_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit_bytes, limit_bytes))


def _told(said: bytes, status: int, *, is_late: bool, config: GrammarHelperConfig) -> TrialEnded:
    """What became of a child, by its words or else by its end."""
    if said.startswith(_COMPILED):
        return TrialEnded(TrialResult.COMPILED, grammar=said[1:].decode())
    if said.startswith(_REFUSED):
        return TrialEnded(TrialResult.REFUSED, reason=said[1:].decode(errors="replace"))
    if is_late:
        return TrialEnded(TrialResult.TIME_LIMIT, reason=f"it does not compile within {config.max_wall_s:g} s")
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    if number == signal.SIGXCPU:
        return TrialEnded(TrialResult.CPU_LIMIT, reason=f"it does not compile within {config.max_cpu_s} s of CPU time")
    if number == signal.SIGSEGV:
        why = f"it nests, or refers, too deeply for the compiler's {config.max_stack_bytes // 2**20} MiB of stack"
    else:
        why = f"it needs more than {config.max_memory_bytes // 2**20} MiB of memory, or the compiler fails on it"
    how = "" if number is None else f" ({signal.Signals(number).name})"
    return TrialEnded(TrialResult.CRASHED, reason=f"the compiler died of it{how}: {why}")
