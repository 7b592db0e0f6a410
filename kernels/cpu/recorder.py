"""The recorder: keeps the parallel regions that are launched while it is open, so that they can be replayed.

The contract of recorded steps. A recording holds addresses, sizes and numbers of threads, as they were when it was
recorded; a replay runs the same functions on them. So between the two

* **addresses stay**: every tensor that a region reads or writes stays where it was. The recording keeps the tensors
  that it was given, `Launch.kept`, alive; what those point to in turn (an attention plan's arrays) is its user's to
  keep.
  New inputs are copied over the old ones (`copy_`, `out=`), never put beside them; a tensor that grows or moves
  needs a new recording. A recording of the KV cache keeps that cache's memory: drop it before the cache is given up.
* **shapes stay**: rows, widths and dtypes are in the task. What may change is what lies at the addresses: elements of
  the inputs, the KV cache, and an attention plan's descriptor with whatever it points to.
* **results and scratch lie in an `Arena`** that recordings share: results are overwritten by the next replay of any of
  them, and while one is recorded or replayed they are kept for two generations of the arena.
* **nothing else computes**: what torch does between the launches happens once, and not when it is replayed.

A recorder that `defers` only keeps the launches: the replay is the first to do them, and no result may be read before.

Checked, by a `RecordingError`: torch operations that compute while the recorder is open (`.contiguous()` or `.to()`
that copy are the usual ones; `computing_constants` is the way out), regions that give their result to Python, a
recording made under an exception, a recorder inside another, two replays in one arena at a time. A recorder belongs to
the thread that opened it: other threads' launches are not recorded.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Arena", "Launch", "Recorder", "RecordingError", "computing_constants", "empty_result", "open_recorder"]


class RecordingError(RuntimeError):
    """The contract of recorded steps was about to be broken; the message says by what."""


class Arena:
    """Memory for results that recordings share, double-buffered: what one generation allocated lives through the next.

    It only grows: by the most that each place of either buffer was ever asked for, in powers of two.
    """

    def __init__(self) -> None:
        self.replaying = threading.Lock()
        self._blocks: dict[tuple[int, int, int], Tensor] = {}
        self._latest: dict[tuple[int, int], Tensor] = {}  # of each place: one layer asks as the one before last did
        self._scratch = torch.empty(0, dtype=torch.uint8)
        self._buffer, self._place = 0, 0

    def next_generation(self) -> None:
        """From here on the results of the generation before last are overwritten."""
        self._buffer, self._place = 1 - self._buffer, 0

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Uninitialised memory of this generation.

        The same sequence of requests gets the same addresses: that is how recordings share it, and why a result is good
        only until another recording is made or replayed.
        """
        place = (self._buffer, self._place)
        self._place += 1
        latest = self._latest.get(place)
        if latest is not None and latest.shape == shape and latest.dtype == dtype:
            return latest
        num_bytes = max(math.prod(shape) * dtype.itemsize, 1)
        # Powers of two: recordings of many sizes share a few blocks.
        key = (*place, 1 << (num_bytes - 1).bit_length())
        if key not in self._blocks:
            self._blocks[key] = torch.empty(key[2], dtype=torch.uint8)
        found = self._latest[place] = self._blocks[key][:num_bytes].view(dtype).view(shape)
        return found

    def scratch(self, num_bytes: int) -> Tensor:
        """Uninitialised memory that every launch may overwrite: the same for all of them, as they run in order.

        A larger one than before is another tensor: who keeps an address keeps the tensor.
        """
        if num_bytes > len(self._scratch):
            self._scratch = torch.empty(1 << (num_bytes - 1).bit_length(), dtype=torch.uint8)
        return self._scratch


class Launch(NamedTuple):
    """One region, as it was launched."""

    function: int  # address of the compiled body
    num_threads: int
    fields: array[int]  # the encoded task: what a replay gives the body
    kept: tuple[object, ...]  # what the fields were made of: holds the tensors behind the addresses


class Recorder:
    """`with Recorder(arena) as recorder:` launches are done as always, and kept in `launches`.

    `defers`: they are kept and not done: the recording's first replay does them. What lies in results until then is
    anything. `watches`: torch's operations are refused, which costs as much as a launch for each view that is made;
    False is for code that was watched before.

    Raises:
        RecordingError: this thread has a recorder open, or something inside would not be replayed.
    """

    def __init__(self, arena: Arena, *, defers: bool = False, watches: bool = True) -> None:
        self.arena = arena
        self.defers = defers
        self.launches: list[Launch] = []
        self.is_complete = False
        self.watch = _TorchWatch() if watches else None

    def __enter__(self) -> Recorder:
        if _of_thread.recorder is not None:
            raise RecordingError("this thread is recording already: recorders can't be nested")
        self.arena.next_generation()
        if self.watch is not None:
            self.watch.__enter__()
        _of_thread.recorder = self
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        _of_thread.recorder = None
        if self.watch is not None:
            self.watch.__exit__(kind, error, trace)
        self.is_complete = kind is None

    def add(self, launch: Launch) -> None:
        """Keeps one launch. The addresses in its fields are those of `launch.kept`'s tensors, which it keeps alive."""
        self.launches.append(launch)


class _TorchWatch(TorchDispatchMode):
    """Refuses torch's operations while a recorder is open, but for views and uninitialised memory."""

    allows_computing = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: torch would import its compiler for that, with sympy and Triton. Nothing here is compiled by it."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if not (self.allows_computing or func.is_view or func in _ALLOCATIONS):
            raise RecordingError(f"{func} computes between recorded launches: a replay would not repeat it")
        return func(*args, **(kwargs or {}))


_ALLOCATIONS = {torch.ops.aten.empty.memory_format, torch.ops.aten.empty_strided.default}


class _OfThread(threading.local):
    recorder: Recorder | None = None


_of_thread = _OfThread()


def open_recorder() -> Recorder | None:
    """The recorder that the calling thread has open."""
    return _of_thread.recorder


@contextmanager
def computing_constants() -> Iterator[None]:
    """Lets torch compute while a recorder is open: what depends on no input, so that a replay need not repeat it."""
    recorder = _of_thread.recorder
    if recorder is None or recorder.watch is None:
        yield
        return
    recorder.watch.allows_computing = True
    try:
        yield
    finally:
        recorder.watch.allows_computing = False


def empty_result(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Uninitialised memory for a kernel's result: torch's own, or the arena's while a recorder is open.

    Every result of a recordable kernel comes from here: a recording replays into the address that it got, and memory of
    torch's would be somebody else's by then.
    """
    recorder = _of_thread.recorder
    return torch.empty(shape, dtype=dtype) if recorder is None else recorder.arena.allocate(tuple(shape), dtype)
