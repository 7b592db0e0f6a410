"""Where each package lies in a wheel: `fleetctl` alone at the top, the five others inside `fleetctl/_bundled`.

Top-level packages named `engine` or `kernels` overwrite those of other distributions (Hugging Face's `kernels`), and
are overwritten by them, without a word. `fleetctl/bundled.py` makes ours importable: docs/decisions/0018-one-name.md.

With FLEETCTL_COMPILE=1 the gateway's hot modules are compiled as well: docs/decisions/0046-gateway-may-be-compiled.md.
"""

import os
import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

BUNDLED = ("alerts", "diagnostics", "engine", "kernels", "runbooks")
PREFIX = "fleetctl._bundled."
GATEWAY = Path("fleetctl/gateway")
COMPILER = "mypy>=1.19"  # mypyc is part of it
BUILDING = {"build_ext", "bdist_wheel", "editable_wheel"}  # other commands only ask for the metadata


def gateway_extensions() -> list[Extension]:
    """The modules that `compiled.py` lists, as one library. The mark says of which source it is."""
    if not BUILDING.intersection(sys.argv):
        return []
    build = runpy.run_path(str(GATEWAY / "compiled.py"))
    mark = GATEWAY / build["BUILD_MARK"]
    mark.unlink(missing_ok=True)
    if not wants_compiled:
        return []
    from mypyc.build import mypycify

    files = [str(build["source_of"](module, GATEWAY)) for module in build["MODULES"]]
    options = ["--config-file=", "--ignore-missing-imports"]  # an isolated build has none of the libraries
    extensions = mypycify(
        [*options, *files], opt_level="2", debug_level="0", multi_file=True, group_name=build["GROUP"]
    )
    mark.write_text(build["source_digest"](GATEWAY), "ascii")
    return extensions


wants_compiled = os.environ.get("FLEETCTL_COMPILE") == "1"
found = find_packages(include=[pattern for name in BUNDLED for pattern in (name, f"{name}.*")])
setup(
    packages=[*find_packages(include=["fleetctl", "fleetctl.*"]), *(PREFIX + name for name in found)],
    package_dir={PREFIX + name: name for name in BUNDLED},
    ext_modules=gateway_extensions(),
    setup_requires=[COMPILER] if wants_compiled else [],
    options={"build_ext": {"parallel": os.cpu_count()}},
)
