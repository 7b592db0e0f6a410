"""The control plane imports where Linux's own calls are missing, as on macOS."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.fixtures import ROOT

LINUX_ALONE = {
    "os": "memfd_create MFD_CLOEXEC sched_getaffinity pidfd_open eventfd O_PATH O_TMPFILE posix_fadvise splice",
    "socket": "TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_QUICKACK SO_INCOMING_CPU AF_NETLINK SO_PEERCRED SO_BINDTODEVICE",
    "select": "epoll",
    "signal": "sigtimedwait pidfd_send_signal",
}
"""By module, what Python has of it on Linux and not on macOS."""

CODE = """
import importlib, pkgutil, sys
for module, names in LINUX_ALONE.items():
    for name in names.split():
        if hasattr(importlib.import_module(module), name):
            delattr(importlib.import_module(module), name)
if not hasattr(importlib.import_module("socket"), "TCP_KEEPALIVE"):
    importlib.import_module("socket").TCP_KEEPALIVE = 0x10
failed = {}
for top in ("fleetctl", "alerts", "diagnostics", "runbooks"):
    package = importlib.import_module(top)
    for module in pkgutil.walk_packages(package.__path__, top + ".", onerror=lambda name: None):
        if not module.name.endswith("__main__"):
            try: importlib.import_module(module.name)
            except Exception as error: failed[module.name] = repr(error)
sys.exit("\\n".join(f"{name}: {why}" for name, why in failed.items()) or None)
"""


def test_every_module_of_the_control_plane_imports_without_linux_own_calls() -> None:
    command = [sys.executable, "-c", f"LINUX_ALONE = {LINUX_ALONE!r}\n{CODE}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
