"""What systemctl and journalctl say, as a provider tells it."""

from __future__ import annotations

import pytest

from fleetctl.providers.hosts.journal import read_entries
from fleetctl.providers.hosts.options import Place
from fleetctl.providers.hosts.unit_state import UnreadableStateError, read_states, seen_of
from fleetctl.providers.provider import ObservedInstance

URL = "http://gpu-1:8000"
PLACE = Place(
    name="chat-1", host="gpu-1", url=URL, unit="vllm.service", engine="vllm", model="m", pool="chat", zone="", sku=""
)


def seen(**state: str) -> ObservedInstance:
    text = "\n".join(f"{key}={value}" for key, value in {"ActiveState": "active", **state}.items())
    return seen_of(PLACE, read_states(text, ["vllm.service"])["vllm.service"])


def test_an_invocation_is_the_identity_of_what_runs() -> None:
    assert seen(SubState="running", InvocationID="ab12") == ObservedInstance("chat-1", True, "ab12", URL, reasons=())
    assert seen(ActiveState="activating", SubState="start", InvocationID="") == ObservedInstance(
        "chat-1", True, None, URL, reasons=()
    )


@pytest.mark.parametrize(
    ("state", "status", "trouble"),
    [
        ({"ActiveState": "inactive", "Result": "success", "ExecMainCode": "0", "ExecMainStatus": "0"}, None, ""),
        ({"ActiveState": "inactive", "Result": "success", "ExecMainCode": "1", "ExecMainStatus": "0"}, 0, ""),
        ({"ActiveState": "failed", "Result": "exit-code", "ExecMainCode": "1", "ExecMainStatus": "3"}, 3, ""),
        (
            {"ActiveState": "failed", "Result": "oom-kill", "ExecMainCode": "2", "ExecMainStatus": "9"},
            -9,
            "out of memory",
        ),
        ({"ActiveState": "failed", "Result": "core-dump", "ExecMainCode": "3", "ExecMainStatus": "6"}, -6, "core-dump"),
        (
            {"ActiveState": "activating", "SubState": "auto-restart", "ExecMainCode": "1", "ExecMainStatus": "1"},
            1,
            "systemd starts it again",
        ),
    ],
)
def test_a_unit_that_ended_says_how(state: dict[str, str], status: int | None, trouble: str) -> None:
    found = seen(**state, InvocationID="old")
    assert (found.running, found.instance, found.exit_status, found.trouble) == (False, None, status, trouble)
    assert found.comes_back is (state.get("SubState") == "auto-restart")


def test_units_are_told_apart_by_their_order() -> None:
    text = "ActiveState=active\nInvocationID=1\n\nActiveState=failed\n\n"
    states = read_states(text, ["a.service", "b.service"])
    assert (states["a.service"]["ActiveState"], states["b.service"]["ActiveState"]) == ("active", "failed")


@pytest.mark.parametrize("text", ["", "ActiveState=active", "hello\n\nworld", "ActiveState=\n\nActiveState=active"])
def test_what_is_no_answer_about_all_units_is_no_answer(text: str) -> None:
    with pytest.raises(UnreadableStateError):
        read_states(text, ["a.service", "b.service"])


def test_entries_of_the_journal_are_lines_with_cursors() -> None:
    output = (
        '{"__CURSOR":"s=1","MESSAGE":"loading"}\n-- Boot 1 --\n{"__CURSOR":"s=2","MESSAGE":[104,105,255]}\n'
        '{"__CURSOR":"s=3","MESSAGE":null}\nnot json\n{"__CURSOR":"s=4","MESSAGE":"a\\nb"}\n'
    )
    assert list(read_entries(output)) == [("loading", "s=1"), ("hi\ufffd", "s=2"), ("a", "s=4"), ("b", "s=4")]


def test_what_systemd_says_of_the_end_is_evidence() -> None:
    end = {"ActiveState": "failed", "ExecMainCode": "2", "ExecMainStatus": "9"}
    assert [(one.word, one.kind.value) for one in seen(**end, Result="oom-kill").reasons or ()] == [
        ("oom-kill", "memory")
    ]
    assert seen(**end, Result="signal").reasons == ()
