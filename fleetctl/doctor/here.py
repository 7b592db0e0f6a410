"""Checks of this machine alone: software, settings, folders, files with secrets, disk, GPUs."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from fleetctl.doctor.finding import Finding, Health
from fleetctl.settings.tree import Settings

MIN_PYTHON = (3, 11)
LOW_BYTES = 1 << 30
LOW_SHARE = 0.05


def check_installation(version: str, python: tuple[int, ...] = sys.version_info[:3]) -> Iterator[Finding]:
    """The interpreter, and whether the libraries that are declared are there."""
    words = ".".join(map(str, python))
    if python < MIN_PYTHON:
        yield Finding("installation", Health.bad, f"Python {words}", "install Python 3.11 or newer")
        return
    missing = sorted(_missing_libraries())
    if missing:
        yield Finding(
            "installation",
            Health.bad,
            f"missing: {', '.join(missing)}",
            f"{sys.executable} -m pip install llm-fleetctl",
        )
    else:
        yield Finding("installation", Health.good, f"fleetctl {version}, Python {words}, all libraries there")


def _missing_libraries() -> Iterator[str]:
    try:
        wanted = importlib.metadata.requires("llm-fleetctl") or ()
    except importlib.metadata.PackageNotFoundError:
        return  # a clone that is run in its folder
    for line in wanted:
        name, _, condition = line.partition(";")
        if "extra" in condition or ("sys_platform" in condition and sys.platform not in condition):
            continue
        for mark in "<>=!~[ (":
            name = name.partition(mark)[0]
        try:
            importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            yield name


def check_state_dir(settings: Settings) -> Iterator[Finding]:
    """Whether the state folder can be written, and who can read the secrets in it."""
    folder = settings.state_dir
    if not folder.exists():
        yield Finding("state folder", Health.unused, f"{folder} is not there yet", "`fleetctl up` makes it")
        return
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        yield Finding(
            "state folder",
            Health.bad,
            f"{folder} can't be read and written by this user",
            f"sudo chown -R $USER {folder}",
        )
        return
    yield Finding("state folder", Health.good, str(folder))
    for path in (settings.controller_token_file, settings.node_token_file, settings.receipt_key_file):
        if path.is_file() and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            mode = stat.filemode(path.stat().st_mode)
            yield Finding("secrets", Health.bad, f"{path} is {mode}: others can read it", f"chmod 600 {path}")
        if path.is_file() and not os.access(path, os.R_OK):
            seen = f"{path} can't be read by this user: the controller answers as to a stranger"
            yield Finding(
                "secrets", Health.bad, seen, f"sudo chown $USER {path}, or fleetctl token create NAME --role operator"
            )


def check_disk(settings: Settings) -> Iterator[Finding]:
    """How much room there is where state and incidents go."""
    seen: set[int] = set()
    for folder in (settings.state_dir, settings.incidents_dir):
        there = _nearest_that_exists(folder)
        try:
            device = there.stat().st_dev
            if device in seen:
                continue
            seen.add(device)
            usage = shutil.disk_usage(there)
        except OSError as error:
            yield Finding("disk", Health.unknown, f"{there}: {error.strerror or error}")
            continue
        free = f"{usage.free / (1 << 30):.1f} GiB free ({usage.free / usage.total:.0%}) at {folder}"
        if usage.free < LOW_BYTES or usage.free < LOW_SHARE * usage.total:
            yield Finding("disk", Health.doubtful, free, "make room, or move it: state_dir, incidents.dir")
        else:
            yield Finding("disk", Health.good, free)


def _nearest_that_exists(folder: Path) -> Path:
    return next((one for one in (folder, *folder.parents) if one.exists()), Path("/"))


def check_nvml() -> Iterator[Finding]:
    """Whether this machine has GPUs and a library that reads them. A machine without a GPU is no fault."""
    has_device = any(Path("/dev").glob("nvidia[0-9]*"))
    try:
        import pynvml
    except ImportError:
        if has_device:
            yield Finding("NVML", Health.bad, "a GPU, and no pynvml", "pip install 'llm-fleetctl[engine]'")
        else:
            yield Finding("NVML", Health.unused, "no GPU on this machine")
        return
    try:
        pynvml.nvmlInit()
        cards = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        if has_device:
            yield Finding("NVML", Health.bad, f"a GPU, and {error}", "nvidia-smi; the driver and its library differ")
        else:
            yield Finding("NVML", Health.unused, "no GPU on this machine")
        return
    yield Finding("NVML", Health.good, f"{cards} GPU{'' if cards == 1 else 's'}")
