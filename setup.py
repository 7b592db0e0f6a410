"""Where each package lies in a wheel: `fleetctl` alone at the top, the five others inside `fleetctl/_bundled`.

Top-level packages named `engine` or `kernels` overwrite those of other distributions (Hugging Face's `kernels`), and
are overwritten by them, without a word. `fleetctl/bundled.py` makes ours importable: docs/decisions/0018-one-name.md.
"""

from setuptools import find_packages, setup

BUNDLED = ("alerts", "diagnostics", "engine", "kernels", "runbooks")
PREFIX = "fleetctl._bundled."

found = find_packages(include=[pattern for name in BUNDLED for pattern in (name, f"{name}.*")])
setup(
    packages=[*find_packages(include=["fleetctl", "fleetctl.*"]), *(PREFIX + name for name in found)],
    package_dir={PREFIX + name: name for name in BUNDLED},
)
