from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbooks.command import parse_command
from runbooks.errors import BadCommandError, BadInputError
from runbooks.template import fill, fill_command, places, unquoted_places
from runbooks.value import ValueType, check_value, parse_duration
from runbooks.verbs import VERBS

GOOD = {
    "fleetctl drain node-2 --deadline 20s": ("drain", "node-2", {"deadline_s": 20}),
    "drain node-2": ("drain", "node-2", {"deadline_s": 30}),
    "drain --deadline=2m node-2 --yes": ("drain", "node-2", {"deadline_s": 120}),
    "cordon n": ("cordon", "n", {}),
    "uncordon n -y": ("uncordon", "n", {}),
    "restart n --wait 1.5": ("restart", "n", {"wait_s": 1.5}),
    "node start b --like a --wait 3m": ("node start", "b", {"like": "a", "wait_s": 180}),
    "node start b": ("node start", "b", {"like": None, "wait_s": 120}),
    "node stop 'n' --force": ("node stop", "n", {"grace_s": 10, "force": True}),
    "node stop n --grace 0": ("node stop", "n", {"grace_s": 0, "force": False}),
}


@pytest.mark.parametrize(("text", "expected"), GOOD.items())
def test_reads_what_a_person_types(text: str, expected: tuple[str, str, dict[str, object]]) -> None:
    action = parse_command(text)
    assert (action.verb.name, str(action.target), dict(action.args)) == expected
    assert action.verb.mutates
    assert action.target.name in action.predicted


BAD = {
    "": "the command is empty; known: adapter load, adapter unload, profile start, profile stop, ask, wait, canary",
    "fleetctl": "the command is empty",
    "drian node-2": "unknown command 'drian'; did you mean 'drain'?",
    "node sotp x": "unknown command 'node sotp'; did you mean 'node stop'?",
    "node": "unknown command 'node'",
    "drain": "drain: takes one node, got none; write `fleetctl drain NODE`",
    "drain a b": "drain: takes one node, got a, b",
    "drain a --deadline": "drain: --deadline has no value; --deadline: when to move",
    "drain a --deadline soon": "drain --deadline: 'soon' is not a duration; write it like 30s",
    "drain a --deadline -5": "drain --deadline: '-5' is not a duration",
    "drain a --deadline 25h": "drain --deadline: '25h' is more than 24h",
    "drain a --deadline 1s --deadline 2s": "drain: --deadline is given twice",
    "drain a --force": "drain: unknown option --force; known: --deadline, --yes",
    "node stop a --force=1": "node stop: --force takes no value; write --force alone",
    "node stop a --froce": "node stop: unknown option --froce; did you mean '--force'?",
    "drain A": "drain: 'A' is not a node name; use a-z",
    "drain -a": "drain: unknown option -a",
    "node start a --like ../b": "node start --like: '../b' is not a node name",
    "drain 'a": '"drain \'a": No closing quotation',
    "drain a; rm -rf /": "drain: unknown option -rf",
    "drain a && restart a": "drain: takes one node, got a, &&, restart, a",
    "drain $(whoami)": "drain: '$(whoami)' is not a node name",
    "drain a\nrestart a": "the command has a line break",
    "drain " + "a" * 2000: "the command has 2006 characters; at most 2000",
}


@pytest.mark.parametrize(("text", "message"), BAD.items())
def test_bad_command_is_refused_with_what_was_meant(text: str, message: str) -> None:
    with pytest.raises(BadCommandError) as caught:
        parse_command(text)
    assert str(caught.value).startswith(message)


@given(st.text(max_size=60))
def test_any_text_is_an_action_or_a_clear_error(text: str) -> None:
    try:
        action = parse_command(text)
    except BadCommandError:
        return
    assert action.verb.name in VERBS


def test_own_time_counts_all_durations() -> None:
    assert parse_command("node start b --like a --wait 3m").own_time_s == 180
    assert parse_command("node stop a --force").own_time_s == 10
    assert parse_command("cordon a").own_time_s == 0


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("2m", 120),
        ("1h", 3600),
        ("45", 45),
        ("0.5s", 0.5),
        ("1h30m", 5400),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("24h", 86400),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


HOSTILE = [
    "a b",
    "--force",
    "-x",
    'a"b',
    "a'b",
    "a\nb",
    "a\n",
    "{{node}}",
    "$(x)",
    "a`b`",
    "a\\",
    "é",
    "",
    " ",
    "a;b",
    "x" * 300,
]


@pytest.mark.parametrize("value_type", ValueType)
@pytest.mark.parametrize("text", HOSTILE)
def test_no_type_takes_text_that_could_leave_its_place(value_type: ValueType, text: str) -> None:
    with pytest.raises(BadInputError):
        check_value(value_type, text)


@given(st.text(max_size=80), st.sampled_from(list(ValueType)))
def test_an_accepted_value_is_one_word_of_a_command_and_closes_no_quote(text: str, value_type: ValueType) -> None:
    try:
        value = check_value(value_type, text)
    except BadInputError:
        return
    assert shlex.split(value) == [value]
    assert not value.startswith("-")
    assert not set(value) & set("\"'`{}\\\n")


def test_values_are_words_of_their_own_whatever_they_hold() -> None:
    filled = fill_command("fleetctl drain {{ node }} --deadline={{d}}", {"node": "a --force b", "d": "1 2"})
    assert shlex.split(filled) == ["fleetctl", "drain", "a --force b", "--deadline=1 2"]


def test_braces_in_values_are_not_filled_again() -> None:
    assert fill("{{a}} {{b}}", {"a": "{{b}}", "b": "x"}) == "{{b}} x"


def test_missing_value_is_named() -> None:
    with pytest.raises(BadInputError, match=r"no input 'b'; define it under inputs, or remove \{\{b\}\}"):
        fill("{{a}} {{b}}", {"a": "1"})


def test_promql_braces_are_no_placeholders() -> None:
    expression = 'llm:up{node="{{node}}",pool=~"{{ pool }}"} > {{limit}}'
    assert places(expression) == ["node", "pool", "limit"]
    assert unquoted_places(expression) == ["limit"]
