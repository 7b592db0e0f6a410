"""What a row that is not right waits for: said beside it in docs/first-night.md."""

from __future__ import annotations

from collections.abc import Mapping

KNOWN_GAPS: Mapping[str, str] = {
    "slow-tokenizer": (
        "What the API process spends before the queue is compared with the node's own past only, and a fleet that is "
        "half a minute old has none (a comparison needs 60 s of traffic). The verdict says so, and names no cause."
    ),
}
