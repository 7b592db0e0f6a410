"""Makes the five packages beside `fleetctl` importable by their own names, in this process and before any other's.

Import this first where one of them is needed (`fleetctl/cli/__init__.py` does). In a clone they lie beside `fleetctl`;
an installed wheel holds them inside it, so that its `engine` and `kernels` replace nobody's in site-packages.
`import fleetctl` and its client leave `sys.path` alone: they need none of the five. For a shell or a script of yours:
`PYTHONPATH=$(python -m fleetctl.bundled) python -m kernels.bench`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

NAMES = ("alerts", "diagnostics", "engine", "kernels", "runbooks")
_PACKAGE = Path(__file__).resolve().parent
FOLDER = next(folder for folder in (_PACKAGE / "_bundled", _PACKAGE.parent) if (folder / NAMES[0]).is_dir())


def put_first() -> None:
    """Put the folder of the five packages first on `sys.path`.

    Raises ImportError when another package of one of these names is imported already: half of each would be worse.
    """
    for name in NAMES:
        other = getattr(sys.modules.get(name), "__file__", None)
        if other is not None and not Path(other).resolve().is_relative_to(FOLDER):
            raise ImportError(f"{name} is imported from {other} already: import fleetctl.bundled before it")
    if sys.path[:1] != [str(FOLDER)]:
        sys.path.insert(0, str(FOLDER))


def environment() -> dict[str, str]:
    """For a Python process to find the five packages too, whatever its working directory holds."""
    inherited = os.environ.get("PYTHONPATH")
    path = os.pathsep.join((str(FOLDER), *([inherited] if inherited else ())))
    return {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1"}


def pass_to_children() -> None:
    """The same for each process that this one starts."""
    os.environ.update(environment())


put_first()

if __name__ == "__main__":
    print(FOLDER)  # noqa: T201  what it is for
