"""`fleetctl notify test|list|show` as they are typed: what happened, and an exit code that scripts can rely on."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fleetctl.cli.app import run
from fleetctl.wire.base import Problem
from fleetctl.wire.notification import Notification, NotificationState, Receiver
from tests.fixtures.recorded_controller import RecordedController, recorded_controller

Typed = Callable[..., tuple[int, str, str]]


def told(receiver: str, state: NotificationState, why: str) -> Notification:
    return Notification(
        id=f"ntf-{receiver}",
        receiver=receiver,
        kind="test",
        state=state,
        subject=f"[TEST] a test of the receiver {receiver}",
        text="all of it",
        thread="t",
        created_at=1.0,
        why=why,
    )


CHAT = Receiver(name="chat", kind="slack", waiting=0, held=0, delivered_at=1.0, routes=["severity page and graver"])
PAGER = Receiver(name="pager", kind="pagerduty", waiting=2, held=0, last_error="receiver pager: answered 403")
FINE = told("chat", NotificationState.DELIVERED, "answered 200")
MISSED = told("pager", NotificationState.FAILED, "receiver pager: answered 403; see its URL and secret")


@pytest.fixture
def controller() -> Iterator[RecordedController]:
    answers = {
        "/v1/receivers": [CHAT, PAGER],
        "/v1/receivers/chat/test": FINE,
        "/v1/receivers/pager/test": MISSED,
        "/v1/notifications": [FINE, MISSED],
    }
    with recorded_controller(answers) as made:
        yield made


@pytest.fixture
def typed(controller: RecordedController, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Typed:
    def type_it(*words: str) -> tuple[int, str, str]:
        code = run(["--state-dir", str(tmp_path), "--controller", controller.url, *words])
        out, err = capsys.readouterr()
        return code, out, err

    return type_it


def test_a_test_that_was_taken_ends_with_zero_and_one_that_was_not_with_one(typed: Typed) -> None:
    assert typed("notify", "test", "chat")[:2] == (0, "chat: delivered: answered 200\n")
    code, out, err = typed("notify", "test")
    assert (code, out.splitlines()) == (
        1,
        ["chat: delivered: answered 200", "pager: failed: answered 403; see its URL and secret"],
    )
    assert "1 of 2 receivers did not take the test: pager" in err
    code, out, _ = typed("notify", "test", "-o", "json")
    assert (code, [one["state"] for one in json.loads(out)]) == (1, ["delivered", "failed"])


def test_a_name_that_nobody_has_is_bad_input_and_so_is_a_test_of_nobody(
    typed: Typed, controller: RecordedController
) -> None:
    code, _, err = typed("notify", "test", "boss")
    assert (code, "there are: chat, pager" in err) == (2, True)
    controller.answers["/v1/receivers"] = []
    assert typed("notify", "test")[0] == 2
    assert "no receivers" in typed("notify", "list")[2]


def test_who_may_only_look_is_refused(typed: Typed, controller: RecordedController) -> None:
    refusal = Problem(error="the role viewer may not do this", exit_code=3)
    controller.answers["/v1/receivers/chat/test"], controller.statuses["/v1/receivers/chat/test"] = refusal, 403
    assert typed("notify", "test", "chat")[0] == 3


def test_receivers_are_listed_with_what_is_wrong_and_one_is_shown_with_its_routes(typed: Typed) -> None:
    code, out, _ = typed("notify", "list")
    assert code == 0
    assert "receiver pager: answered 403" in out
    code, out, _ = typed("notify", "show", "chat")
    assert (code, "told of: severity page and graver" in out) == (0, True)
    code, out, _ = typed("notify", "show", "pager", "-o", "json")
    assert [one["id"] for one in json.loads(out)["notifications"]] == ["ntf-pager"]


def test_the_verb_of_runbooks_is_still_there(typed: Typed, controller: RecordedController) -> None:
    code, _, err = typed("notify", "--receiver", "chat", "--yes")
    assert (code, "--text is missing" in err) == (2, True)
