"""One id from end to end: a request's, and the ids of its sequences, which begin with it.

A client may repeat an id, and a request may come back to a node that has not let go of it, so a sequence id has two
parts more: the admission (drawn anew whenever a node takes the request in) and the index of the choice. None of the
three parts holds a slash.
"""

from __future__ import annotations

import re
import secrets
import uuid

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")  # no slash: it separates the parts of a sequence id


def usable_request_id(given: str | None) -> str:
    """The client's X-Request-Id when it is usable, else a new one."""
    return given if given is not None and REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def new_admission() -> str:
    """What tells the sequences of two admissions of one id apart: 8 hex digits."""
    return secrets.token_hex(4)


def make_seq_id(request_id: str, admission: str, index: int) -> str:
    """The id of the sequence of choice `index`."""
    return f"{request_id}/{admission}/{index}"


def log_ids(seq_id: str) -> dict[str, str]:
    """What a log line about a sequence carries. The node's own probes belong to no request."""
    request_id, slash, _ = seq_id.partition("/")
    return {"request_id": request_id, "seq_id": seq_id} if slash else {"seq_id": seq_id}
