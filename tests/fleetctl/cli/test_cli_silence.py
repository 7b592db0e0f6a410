"""`fleetctl silence` as it is typed."""

from __future__ import annotations

import pytest

from fleetctl.cli.app import run
from fleetctl.cli.duration_option import duration_s
from fleetctl.cli.silence import parse_matcher
from fleetctl.kit.errors import BadInputError


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
