"""`fleetctl-node`, `python -m fleetctl.node`: the engine's commands, wherever the engine is installed.

It starts what `python -m engine` starts in a clone. Nothing of the engine is imported until then: the control plane
installs without it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

from fleetctl import bundled

ENGINE_LIBRARIES = ("torch", "numba", "safetensors", "tokenizers", "msgspec")  # what no node starts without
INSTALL_ENGINE = "pip install 'llm-fleetctl[engine]'"


def missing_library() -> str | None:
    """The first library of the extra `[engine]` that is not installed here; None when a node can be started."""
    return next((name for name in ENGINE_LIBRARIES if importlib.util.find_spec(name) is None), None)


def main() -> None:
    """Run one of the engine's commands and exit with its code."""
    missing = missing_library()
    if missing is not None:
        sys.stderr.write(f"error: the engine is not installed here: {missing} is missing\n  try: {INSTALL_ENGINE}\n")
        sys.exit(2)
    bundled.pass_to_children()  # the core is a process of its own
    sys.exit(importlib.import_module("engine.__main__").main(sys.argv[1:]))


if __name__ == "__main__":
    main()
