"""Who got no answer and asks for the same again is counted; who asks for something else, or much later, is not."""

from __future__ import annotations

import pytest

from fleetctl.gateway.requests.fates import Outcome, ProxiedRequest
from fleetctl.gateway.requests.unserved import WITHIN_S, UnservedMemory

CHAT = "/v1/chat/completions"
BODY = b'{"messages": []}'


def ask(memory: UnservedMemory, at: float, body: bytes | None = BODY, path: str = CHAT) -> tuple[ProxiedRequest, bool]:
    proxied = ProxiedRequest("r", at, at)
    return proxied, memory.note_begun(proxied, path, body, at)


def end(
    memory: UnservedMemory, proxied: ProxiedRequest, outcome: Outcome, at: float, status: int | None = None
) -> None:
    proxied.outcome, proxied.status = outcome, status
    memory.note_ended(proxied, at)


@pytest.mark.parametrize(
    ("outcome", "status", "is_again"),
    [
        (Outcome.CLIENT_GONE, None, True),
        (Outcome.GAVE_UP, None, True),
        (Outcome.FAILED, 502, True),
        (Outcome.REFUSED, 429, True),
        (Outcome.REFUSED, 503, True),
        (Outcome.REFUSED, 400, False),
        (Outcome.FINISHED, 200, False),
    ],
)
def test_the_same_is_asked_again_where_it_got_no_answer_and_may_get_one(
    outcome: Outcome, status: int | None, is_again: bool
) -> None:
    memory = UnservedMemory()
    first, was_again = ask(memory, 100.0)
    assert not was_again
    end(memory, first, outcome, 103.0, status)
    assert ask(memory, 104.0)[1] is is_again


def test_another_body_or_path_or_a_later_time_is_not_the_same_again() -> None:
    memory = UnservedMemory()
    first, _ = ask(memory, 100.0)
    end(memory, first, Outcome.CLIENT_GONE, 103.0)
    assert not ask(memory, 104.0, body=BODY + b" ")[1]
    assert not ask(memory, 104.0, path="/v1/completions")[1]
    assert not ask(memory, 104.0, body=None)[1]
    assert ask(memory, 103.0 + WITHIN_S)[1]
    assert not ask(memory, 103.1 + WITHIN_S)[1]


def test_each_try_that_ends_without_an_answer_counts_anew() -> None:
    memory = UnservedMemory()
    for number in range(4):
        proxied, is_again = ask(memory, 100.0 + 40 * number)
        assert is_again is (number > 0)
        end(memory, proxied, Outcome.CLIENT_GONE, 110.0 + 40 * number)


def test_with_its_answer_it_is_forgotten() -> None:
    memory = UnservedMemory()
    for outcome, was_again in ((Outcome.CLIENT_GONE, False), (Outcome.FINISHED, True), (Outcome.FINISHED, False)):
        proxied, is_again = ask(memory, 100.0)
        assert is_again is was_again
        end(memory, proxied, outcome, 101.0)


def test_the_oldest_are_forgotten_first() -> None:
    memory = UnservedMemory(max_remembered=2)
    for number in (1, 2, 1, 3):  # the first came again meanwhile
        proxied, _ = ask(memory, 100.0 + number, body=b"%d" % number)
        end(memory, proxied, Outcome.CLIENT_GONE, 100.0 + number)
    assert [ask(memory, 110.0, body=b"%d" % number)[1] for number in (1, 2, 3)] == [True, False, True]
