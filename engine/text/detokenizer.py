"""Token ids to text that may be shown: whole UTF-8 characters, and nothing from a stop string on.

What has been released after k tokens depends on those k tokens alone, never on how steps or network packets grouped
them. That is what lets another node take a request over: it pushes the same tokens and goes on after the same
character.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable


class TextStream:
    """The text of one choice while it grows. Push tokens one at a time."""

    __slots__ = (
        "_decoder",
        "_held",
        "_include_stop",
        "_min_tokens",
        "_stop",
        "bytes_of",
        "num_chars",
        "num_tokens",
        "stopped_by",
    )

    def __init__(
        self,
        bytes_of: Callable[[int], bytes],
        *,
        stop: Iterable[str] = (),
        include_stop: bool = False,
        min_tokens: int = 0,
    ) -> None:
        """`bytes_of` gives a token id's bytes. Stop strings count only from token `min_tokens` on."""
        self.bytes_of = bytes_of
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = tuple(stop)
        self._include_stop = include_stop
        self._min_tokens = min_tokens
        self._held = ""  # decoded, but it may be the beginning of a stop string
        self.num_tokens = 0
        self.num_chars = 0  # released so far
        self.stopped_by: str | None = None

    def push(self, token_id: int) -> str:
        """Takes one more token; returns the text that may be shown now, possibly empty."""
        assert self.stopped_by is None, "no token follows a stop string"
        self.num_tokens += 1
        text = self._held + self._decoder.decode(self.bytes_of(token_id))
        self._held = ""
        if self._stop and self.num_tokens >= self._min_tokens:
            text = self._cut(text)
        self.num_chars += len(text)
        return text

    def finish(self) -> str:
        """Releases what was held back, when generation ended without a stop string.

        Bytes of a character that never became whole are dropped.
        """
        text, self._held = self._held, ""
        self.num_chars += len(text)
        return text

    def _cut(self, text: str) -> str:
        match = first_stop(text, self._stop)
        if match is not None:
            start, end, self.stopped_by = match
            return text[: end if self._include_stop else start]
        keep = longest_stop_prefix(text, self._stop)
        if keep == 0:
            return text
        self._held = text[-keep:]
        return text[:-keep]


def first_stop(text: str, stop: Iterable[str]) -> tuple[int, int, str] | None:
    """(start, end, stop string) of the stop string that is complete first; of several at once, the longest."""
    found = [(text.find(s), s) for s in stop]
    matches = [(start + len(s), start, s) for start, s in found if start >= 0]
    if not matches:
        return None
    end, start, which = min(matches)
    return start, end, which


def longest_stop_prefix(text: str, stop: Iterable[str]) -> int:
    """Number of characters at the end of `text` that may be the beginning of a stop string."""
    longest = 0
    for s in stop:
        for size in range(min(len(s) - 1, len(text)), longest, -1):
            if text.endswith(s[:size]):
                longest = size
                break
    return longest
