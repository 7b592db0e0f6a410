"""Which build of the gateway's hot modules is imported: compiled by mypyc where that is of just this source, else it.

`FLEETCTL_COMPILE=1 pip install .` or `make compile-gateway` compiles; `FLEETCTL_COMPILED` is the choice in a process:
`0` takes the source, `1` refuses to go on without the compiled modules. setup.py reads this too: standard library only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from hashlib import blake2b
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

GROUP = "fleetctl_gateway"
"""The one library that holds them all; beside each module lies a stub that points into it."""
MODULES = (
    "admission.admission",
    "admission.demand",
    "admission.fair_queue",
    "admission.seat_limit",
    "admission.seat_queue",
    "admission.tenant_account",
    "admission.token_bucket",
    "http.body_budget",
    "http.client_connection",
    "http.connection_limits",
    "http.event_stream",
    "http.exchange",
    "http.message_head",
    "http.node_client",
    "http.node_connection",
    "nodes.ejection",
    "nodes.fitness",
    "nodes.loads",
    "nodes.node_watch",
    "nodes.retry_budget",
    "requests.chooser",
    "requests.continuation",
    "requests.decisions",
    "requests.entry",
    "requests.fates",
    "requests.place",
    "requests.proxy",
    "requests.relay",
    "requests.request_log",
    "requests.stream_part",
    "routing.pick",
    "routing.prefix_index",
)
"""What runs for each request or piece of a stream. Not `routing_facts`: compiled code is slower on msgspec's types."""
FOLDER = Path(__file__).parent
BUILD_MARK = "compiled.txt"
"""Written by setup.py beside this file: the digest of the source that was compiled."""
CHOICE = "FLEETCTL_COMPILED"


def source_of(module: str, folder: Path = FOLDER) -> Path:
    """The file of one of MODULES."""
    return folder.joinpath(*module.split(".")).with_suffix(".py")


def source_digest(folder: Path = FOLDER) -> str:
    """Of all that is compiled, and by which release of Python."""
    digest = blake2b(EXTENSION_SUFFIXES[0].encode(), digest_size=16)
    for module in MODULES:
        digest.update(source_of(module, folder).read_bytes())
    return digest.hexdigest()


def is_current(folder: Path = FOLDER) -> bool:
    """Whether there is a build, and of the source as it is now."""
    try:
        return (folder / BUILD_MARK).read_text("ascii") == source_digest(folder)
    except (OSError, UnicodeDecodeError):
        return False


class SourceFinder(MetaPathFinder):
    """Finds the source of MODULES, though a compiled one lies beside it."""

    def __init__(self, package: str, folder: Path) -> None:
        self._files = {f"{package}.{module}": source_of(module, folder) for module in MODULES}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Called by import."""
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


def choose_build(package: str, folder: Path = FOLDER, choice: str | None = None) -> None:
    """Have `package` import one build or the other from now on. Raises ImportError: asked for and not there."""
    choice = os.environ.get(CHOICE, "") if choice is None else choice
    if choice != "0" and is_current(folder):
        return
    if choice == "1":
        raise ImportError(f"{CHOICE}=1: no compiled modules of this source; make compile-gateway builds them")
    if source_of(MODULES[0], folder).with_suffix(EXTENSION_SUFFIXES[0]).exists():
        sys.meta_path.insert(0, SourceFinder(package, folder))


def is_in_use(package: str = "fleetctl.gateway") -> bool:
    """Whether this process runs the compiled modules."""
    file = getattr(sys.modules.get(f"{package}.{MODULES[0]}"), "__file__", None)
    return file is not None and not file.endswith(".py")
