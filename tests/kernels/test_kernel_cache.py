"""A cache that can't be read or written costs time, never a start and never a bit."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kernels import compile_ahead
from kernels.cpu import kernel_cache, silu_mul
from kernels.cpu.parallel_region import ParallelRegion

PROGRAM = """
import hashlib, json, sys
import structlog
import torch
from kernels.layer_ops import rms_norm, silu_mul
from kernels.paged_attention import paged_attention

said = []
def keep(logger, name, event):
    said.append(event)
    raise structlog.DropEvent


structlog.configure(processors=[keep])
torch.set_num_threads(1)
generator = torch.Generator().manual_seed(5)
x = torch.randn(40, 100, generator=generator)
q, k, v = (torch.randn(shape, generator=generator) for shape in ((70, 4, 80), (40, 16, 2, 80), (40, 16, 2, 80)))
tables, lens = torch.arange(40, dtype=torch.int32)[None], torch.tensor([600], dtype=torch.int32)
starts = torch.tensor([0, 70], dtype=torch.int32)
computed = {
    "attention": lambda: paged_attention(q, k, v, tables, lens, starts, scale=0.1),
    "norm": lambda: rms_norm(x, x[0], 1e-5),
    "silu": lambda: silu_mul(x),
}
bits = {name: hashlib.sha256(computed[name]().numpy().tobytes()).hexdigest() for name in sys.argv[1:]}
print(json.dumps([dict(sorted(bits.items())), said]))
"""


def _run(folder: Path | str, *names: str) -> tuple[dict[str, str], list[dict[str, str]]]:
    """The digests of what another process computes with this cache, in this order, and what it logged."""
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM, *names],
        env={**os.environ, "NUMBA_CACHE_DIR": str(folder)},
        stdout=subprocess.PIPE,
        check=True,
    )
    bits, said = json.loads(found.stdout)
    return bits, said


@pytest.mark.timeout(600)  # attention takes seconds of CPU to compile
def test_bits_depend_neither_on_the_cache_nor_on_what_was_compiled_before(tmp_path: Path) -> None:
    """Compiled and kept; loaded, but for one file that was cut short; compiled in another order without a cache."""
    compiled, said = _run(tmp_path / "cache", "norm", "attention", "silu")
    assert said == []
    [kept] = (tmp_path / "cache").iterdir()
    files = {file.name.partition(".")[0]: file for file in kept.iterdir()}
    assert set(files) == {"paged_attention", "rms_norm", "silu_mul"}

    whole = files["rms_norm"].read_bytes()
    files["rms_norm"].write_bytes(whole[: len(whole) // 2])
    loaded, said = _run(tmp_path / "cache", "silu", "attention", "norm")
    assert loaded == compiled
    assert [(event["event"], event["path"]) for event in said] == [("kernel_cache.damaged", str(files["rms_norm"]))]
    assert len(files["rms_norm"].read_bytes()) > len(whole) // 2, "it was replaced"

    alone, said = _run("/proc/nowhere", "silu", "norm")
    assert alone == {name: compiled[name] for name in alone}
    assert [event["event"] for event in said] == ["kernel_cache.unwritable"], "said once, not for each kernel"
    assert "/proc/nowhere" in said[0]["reason"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    kernel_cache.cache_folder.cache_clear()
    kernel_cache._told.clear()
    folder = kernel_cache.cache_folder()
    assert folder is not None
    assert folder.parent == tmp_path / "kernels"
    yield folder
    kernel_cache.cache_folder.cache_clear()


def _compile() -> ParallelRegion:
    region = ParallelRegion(silu_mul._body_in_float32)
    assert region._compiled.address
    return region


def test_a_full_disk_leaves_no_part_of_a_file_and_is_said_once(folder: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with capture_logs() as said:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            _compile()
            _compile()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(folder.iterdir()) == []
    assert [event["event"] for event in said] == ["kernel_cache.unwritable"]
    _compile()
    assert len(list(folder.iterdir())) == 1


def test_a_file_that_cannot_be_read_is_named_and_compiled_again(folder: Path) -> None:
    _compile()
    [file] = folder.iterdir()
    file.unlink()
    file.mkdir()
    with capture_logs() as said:
        _compile()
    assert [event["event"] for event in said][:1] == ["kernel_cache.unreadable"]
    assert said[0]["path"] == str(file)


STARTS = """
from numba.core.ccallback import CFunc
from kernels.cpu import kernel_cache, rms_norm, silu_mul
from kernels.cpu.parallel_region import ParallelRegion

kernel_cache.LONGEST_WAIT_S = 500.0  # however busy the machine, the one that compiles is no stopped one
before = CFunc._compile_uncached
def compile_uncached(self):
    print("compiled")
    return before(self)
CFunc._compile_uncached = compile_uncached
for body in (silu_mul._body_in_float32, rms_norm._body_in_float32):
    ParallelRegion(body)._compiled.address
"""


@pytest.mark.timeout(600)
def test_processes_that_start_together_compile_each_kernel_once(tmp_path: Path) -> None:
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    started = [
        subprocess.Popen([sys.executable, "-c", STARTS], env=environment, stdout=subprocess.PIPE) for _ in range(3)
    ]
    said = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0, 0, 0]
    assert b"".join(said).split() == [b"compiled"] * 2


@pytest.mark.parametrize("changed", ["cpu/sums.py", "kv_codes.py"])
def test_an_update_of_a_called_function_or_a_constant_finds_no_kernel_of_before(
    changed: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "kernels of an update"
    shutil.copytree(Path(kernel_cache.__file__).parents[1], sources, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernel_cache, "_SOURCE", sources / "cpu")
    kernel_cache.cache_folder.cache_clear()
    assert kernel_cache.cache_folder() == folder, "of the same sources, wherever they lie"
    with (sources / changed).open("a") as file:
        file.write("# changed\n")
    kernel_cache.cache_folder.cache_clear()
    found = kernel_cache.cache_folder()
    assert found is not None
    assert found != folder
    assert found.parent == folder.parent


def test_folders_of_other_versions_are_removed_once_nobody_used_them_for_a_while(folder: Path) -> None:
    now = time.time()
    ages = {"kernels-new": 60.0, **{f"kernels-{i}": 5_000.0 + i for i in range(6)}, "compiled-0": 9e5, "mine": 9e5}
    for name, age in ages.items():
        (folder.parent / name).mkdir()
        os.utime(folder.parent / name, (now - age, now - age))
    before = folder.parent / "rms_norm._body-0123.kernel"
    before.touch()
    os.utime(before, (now - 9e5, now - 9e5))
    kernel_cache.cache_folder.cache_clear()
    assert kernel_cache.cache_folder() == folder
    left = {path.name for path in folder.parent.iterdir()}
    assert left == {folder.name, "mine", "kernels-new", "kernels-0", "kernels-1", "kernels-2"}


def test_without_a_home_the_other_folders_are_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_home() -> Path:
        raise RuntimeError("could not determine home directory")

    monkeypatch.setattr(Path, "home", no_home)
    for name in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert len(list(kernel_cache._candidates())) == 1
    monkeypatch.setenv("CACHE_DIRECTORY", f"{tmp_path}:/elsewhere")
    assert list(kernel_cache._candidates())[1].is_relative_to(tmp_path)


def test_no_kernel_lets_the_compiler_regroup_its_arithmetic() -> None:
    """`fastmath` makes bits depend on inlining: sums say their order themselves."""
    sources = {path.name: path.read_text() for path in Path(kernel_cache.__file__).parent.glob("*.py")}
    allowing = [name for name, text in sources.items() if re.search(r"fastmath\W+(True|\{|set)", text)]
    assert allowing == []
    assert '"fastmath": False' in sources["numba_options.py"]


MACHINE_CODE = """
import gc
from numba.core.codegen import JITCodeLibrary
from kernels.cpu import paged_attention, silu_mul
from kernels.cpu.parallel_region import ParallelRegion

made, collecting, before = [], [], JITCodeLibrary._finalize_specific
def finalize(self):
    made.append(self.name)
    collecting.append(gc.isenabled())
    before(self)
JITCodeLibrary._finalize_specific = finalize
for body in (silu_mul._body_in_float32, paged_attention._body_in_float32):
    ParallelRegion(body)._compiled.address
    assert gc.isenabled()
print(len([name for name in made if name.startswith("_body") or "kernels" in name]), any(collecting))
"""


@pytest.mark.timeout(600)
def test_machine_code_is_made_of_kernels_alone(tmp_path: Path) -> None:
    """Of none of the functions below them: that was a third of what compiling them took, collecting garbage another."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    found = subprocess.run(
        [sys.executable, "-c", MACHINE_CODE], env=environment, stdout=subprocess.PIPE, check=True, text=True
    )
    assert found.stdout.split() == ["2", "False"]


def test_a_model_without_experts_is_ready_without_their_kernels(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def call(name: str) -> Callable[..., None]:
        return lambda *arguments: compiled.append(name)

    monkeypatch.setattr(compile_ahead, "_CALLS", {name: call(name) for name in ("experts", "norm", "draw")})
    compile_ahead.compile_ahead("float32", has_experts=False)
    assert compiled == ["draw", "norm"], "the last one that a start needs comes first"
    assert compile_ahead.is_compiled("float32", has_experts=False)
    assert not compile_ahead.is_compiled("float32")
    assert not compile_ahead.is_compiled("float32", "w4a8", has_experts=False)
    compile_ahead.compile_ahead("bfloat16")
    assert compile_ahead.is_compiled("bfloat16")
    assert compile_ahead.is_compiled("bfloat16", has_experts=False)
