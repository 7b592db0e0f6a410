"""`fleetctl silence` as it is typed."""

from __future__ import annotations

import pytest

from fleetctl.cli.app import run
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.silence import muted_now, parse_matcher
from fleetctl.kit.errors import BadInputError
from fleetctl.wire.alert import Alert, AlertState
from fleetctl.wire.silence import Silence


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("node=n1", ("node", "=", "n1")),
        ("node!=n1", ("node", "!=", "n1")),
        ("node=~n[12]", ("node", "=~", "n[12]")),
        ("node!~'x'", ("node", "!~", "'x'")),
        ('summary="a \\"b\\" c"', ("summary", "=", 'a "b" c')),
        ("path=a=b", ("path", "=", "a=b")),
        ("zone=", ("zone", "=", "")),
        (" node = n1 ", ("node", "=", "n1")),
        ("LLMNodeDown", ("alertname", "=", "LLMNodeDown")),
    ],
)
def test_matchers(text: str, wanted: tuple[str, str, str]) -> None:
    found = parse_matcher(text)
    assert (found.name, found.op, found.value) == wanted


@pytest.mark.parametrize("text", ["", "=x", "1a=b", "a b", 'a="b', "a~b"])
def test_what_is_no_matcher_is_refused(text: str) -> None:
    with pytest.raises(BadInputError, match="no matcher"):
        parse_matcher(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30m", 1800),
        ("2h", 7200),
        ("1d12h", 129600),
        ("90s", 90),
        ("1w", 604800),
        ("1y", 31536000),
        ("1h500ms", 3600.5),
        ("1.5h", 5400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration_s("--duration", text, "a silence") == seconds


@pytest.mark.parametrize("text", ["", "0s", "500ms", "2", "h", "2h junk", "-1h", "9999w", "12h1d", "1h1h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        duration_s("--duration", text, "a silence")


def test_bad_input_is_exit_code_2_before_anybody_is_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["silence", "add", "node=n1", "--comment", "c", "--duration", "soon"]) == 2
    assert run(["silence", "add", "node=n1", "--comment", "  "]) == 2
    assert run(["silence", "add", "node=n1"]) == 2
    assert "duration" in capsys.readouterr().err


def alert(name: str, state: AlertState = AlertState.FIRING, **labels: str) -> Alert:
    return Alert(fingerprint=f"{name}{labels}", name=name, severity="page", state=state, labels=labels)


def silence(*matchers: str) -> Silence:
    return Silence(
        id="s1",
        state="active",
        matchers=[parse_matcher(one) for one in matchers],
        starts_at=0.0,
        ends_at=1.0,
        created_by="ann",
        comment="c",
    )


@pytest.mark.parametrize(
    ("matchers", "said"),
    [
        (("LLMNodeSlow",), "mutes 2 of the alerts that stand now (3)"),
        (("LLMNodeSloww",), "mutes none of the alerts that stand now (3)"),  # misspelt
        (("LLMNodeSlow", "node=n1"), "mutes 1 of"),
        (("node=~'n[12]'",), "mutes none of"),  # the quotes are a part of it
        (("node=~n[12]",), "mutes 2 of"),
        (("node!=n1",), "mutes 2 of"),
        (("zone=",), "mutes 3 of"),  # what an alert lacks counts as empty
        (("node=~(?P<",), "mutes none of"),
    ],
)
def test_it_is_said_how_many_alerts_a_silence_mutes_now(matchers: tuple[str, ...], said: str) -> None:
    standing = [alert("LLMNodeSlow", node="n1"), alert("LLMNodeSlow", AlertState.PENDING, node="n2"), alert("Other")]
    over = alert("LLMNodeSlow", AlertState.RESOLVED, node="n3")
    assert muted_now(silence(*matchers), [*standing, over]).startswith(said)
    assert muted_now(silence(*matchers), [over]) == "no alert stands now"
