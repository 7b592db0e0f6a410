"""What a JSON body costs to parse, known before it is parsed.

A parser holds the interpreter from a body's first byte to its last, so nothing else runs meanwhile: no stream goes
on, no probe is answered. Its time follows the number of values, not of bytes: a text of 8 MB takes milliseconds, as
many bytes of small objects take seconds. So values are counted first, in slices that give way to others.
"""

from __future__ import annotations

from collections.abc import Iterator

FREE_BYTES = 64 * 2**10  # whatever these hold is parsed in a few milliseconds
SLICE_BYTES = 64 * 2**10
# In units of one number in a list, of which a million take 0.15 s.
WEIGHTS = {b"{": 12, b"[": 4, b":": 3, b",": 1}
BASE_WEIGHT = 300_000  # beside what the longest prompt of token ids may have


def weight(body: bytes, limit: int) -> int:
    """What the body weighs, or more than `limit` as soon as that is known. Meant for a thread."""
    total = 0
    for outside in _outside_of_texts(body):
        total += sum(cost * outside.count(mark) for mark, cost in WEIGHTS.items())
        if total > limit:
            break
    return total


def _outside_of_texts(body: bytes) -> Iterator[bytes]:
    """Slices of the body without its texts. For what is no JSON they are some part of it, which its parser refuses."""
    is_inside, start = False, 0
    while start < len(body):
        end = start + SLICE_BYTES
        part = body[start:end]
        if (len(part) - len(part.rstrip(b"\\"))) % 2:  # never between a backslash and what it escapes
            end += 1
            part = body[start:end]
        pieces = part.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        yield b"".join(pieces[is_inside::2])
        is_inside ^= len(pieces) % 2 == 0
        start = end
