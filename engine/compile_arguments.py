"""The options of `fleetctl-node compile`."""

from __future__ import annotations

import argparse
import os

from kernels.quantization import QUANTIZATIONS

DTYPES = ("bfloat16", "float32")


def add_compile_arguments(parser: argparse.ArgumentParser) -> None:
    """`engine.core.compile_command` reads them."""
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES, help="of weights; default: both")
    parser.add_argument("--quantization", choices=QUANTIZATIONS, help="as `serve` is given; default: none")
    parser.add_argument("--kv-cache-dtype", default="auto", choices=("auto", "int8", "fp8"), help="likewise")
    parser.add_argument(
        "--jobs", metavar="N", type=int, default=len(os.sched_getaffinity(0)), help="processes (%(default)s)"
    )
    parser.add_argument("--dense", action="store_true", help="without what only mixtures of experts need")
    parser.add_argument("--with-parent", action="store_true", help=argparse.SUPPRESS)  # a core's helper ends with it
