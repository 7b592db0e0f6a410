"""Tree files: what is refused, and that the message says where."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.content_file import BadContentFileError
from diagnostics.query import AskedAt, bind_query
from diagnostics.tree_file import load_trees

ASKED = AskedAt(now=5_000.0, onset=4_000.0)
GOOD = """
tree: sample
title: A sample
symptoms: [SomethingWrong]
questions:
  - id: first
    ask: Is it one?
    query: max(llm:one{{{scope}}})
    when: "> 1"
    unit: count
    if_yes: slow
  - id: second
    ask: Is it two?
    query: max(llm:two{node="{{node}}"})
    when: "<= 0.5"
    unit: ratio
    if_yes: slow
verdicts:
  - id: slow
    cause: slow_node
    title: "{{where}} at {{value}}"
"""


def write(tmp_path: Path, text: str, name: str = "sample.yaml") -> Path:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    return path


def test_loads_a_tree_with_its_limits(tmp_path: Path) -> None:
    tree = load_trees([write(tmp_path, GOOD)])["sample"]

    assert [question.threshold for question in tree.questions] == ["> 1", "<= 50 %"]
    assert (tree.max_age_s, tree.symptoms) == (60.0, ("SomethingWrong",))


BROKEN = [
    ("unknown placeholder", "llm:one{{{scope}}}", 'llm:one{a="{{rack}}"}', "first: unknown placeholder rack"),
    ("bad promql", "max(llm:two", "max((llm:two", "question second: "),
    ("unknown function", "max(llm:two", "frobnicate(llm:two", "question second: "),
    ("branch upwards", "if_yes: slow\nverdicts", "if_yes: first\nverdicts", "second: if_yes leads up to first"),
    ("branch to itself", "if_yes: slow\nverdicts", "if_yes: second\nverdicts", "leads up to second"),
    ("branch nowhere", "if_yes: slow\nverdicts", "if_yes: nowhere\nverdicts", "question second: if_yes names nowhere"),
    ("unknown cause", "cause: slow_node", "cause: gremlins", 'verdict slow: unknown cause "gremlins"'),
    ("same id twice", "id: second", "id: first", "question first: the id is taken"),
    ("id of a verdict", "id: second", "id: slow", "question slow: the id is taken"),
    ("bad limit", '"> 1"', '"about 1"', "question first: when: "),
    ("unknown unit", "unit: count", "unit: furlong", "question first: unit: "),
    ("unknown key", "unit: count", "unit: count\n    colour: red", "question first: colour: "),
    ("missing query", "    query: max(llm:one{{{scope}}})\n", "", "question first: query: Field required"),
    ("title placeholder", "{{value}}", "{{speed}}", "verdict slow: title has an unknown placeholder speed"),
    ("past up to now", "llm:one{{{scope}}}", "avg_over_time(llm:one[30m])", "a window of 30 min 00 s ends now"),
    ("subquery up to now", "llm:one{{{scope}}}", "max_over_time(rate(llm:one[20s])[10m:5s])", "ends now"),
    ("age of a past", "llm:one{{{scope}}}", "avg_over_time(llm:one[30m] {{before}})", "the age of a past value"),
    ("no symptoms", "[SomethingWrong]", "[]", "symptoms: "),
    ("not yaml", "tree: sample", "tree: [", "not YAML"),
    ("not a mapping", GOOD, "- 1", "expected a mapping"),
]


@pytest.mark.parametrize(("old", "new", "message"), [case[1:] for case in BROKEN], ids=[c[0] for c in BROKEN])
def test_refuses_and_names_the_place(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in GOOD
    path = write(tmp_path, GOOD.replace(old, new, 1))

    with pytest.raises(BadContentFileError) as caught:
        load_trees([path])

    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_refuses_a_verdict_and_a_question_that_nothing_leads_to(tmp_path: Path) -> None:
    extra = GOOD + '  - id: lost\n    cause: overload\n    title: "never"\n'
    with pytest.raises(BadContentFileError, match="verdict lost: no branch leads here"):
        load_trees([write(tmp_path, extra)])

    skipping = GOOD.replace(
        "if_yes: slow\n  - id: second", "if_yes: slow\n    if_no: end\n    if_unknown: end\n  - id: second"
    )
    with pytest.raises(BadContentFileError, match="question second: no branch leads here"):
        load_trees([write(tmp_path, skipping)])


def test_refuses_two_trees_for_one_alert_and_one_name_twice(tmp_path: Path) -> None:
    one = write(tmp_path, GOOD)
    with pytest.raises(BadContentFileError, match="tree sample is defined twice"):
        load_trees([one, write(tmp_path, GOOD, "again.yaml")])
    with pytest.raises(BadContentFileError, match="SomethingWrong is already explained by tree sample"):
        load_trees([one, write(tmp_path, GOOD.replace("tree: sample", "tree: other"), "other.yaml")])


def test_refuses_what_it_cannot_read(tmp_path: Path) -> None:
    with pytest.raises(BadContentFileError, match=r"missing\.yaml: can't be read"):
        load_trees([tmp_path / "missing.yaml"])
    with pytest.raises(BadContentFileError, match="larger than"):
        load_trees([write(tmp_path, GOOD + "#" * 300_000)])


def test_a_label_value_cannot_break_out_of_its_query() -> None:
    query, why = bind_query('up{node="{{node}}"} or x{{{scope}}}', {"node": 'a"} or vector(1) #\\'}, ASKED)

    assert why == ""
    assert query == 'up{node="a\\"} or vector(1) #\\\\"} or x{node="a\\"} or vector(1) #\\\\"}'


def test_the_scope_selects_by_the_narrowest_label_it_has() -> None:
    assert bind_query("x{{{scope}}}", {"pool": "chat", "node": "n1"}, ASKED)[0] == 'x{node="n1"}'
    assert bind_query("x{{{scope}}}", {"pool": "chat"}, ASKED)[0] == 'x{pool="chat"}'
    assert bind_query("x{{{scope}}}", {}, ASKED)[0] == "x{}"
    assert bind_query('x{node="{{node}}"}', {"pool": "chat"}, ASKED) == ("", "the scope names no node")


def test_a_past_ends_before_the_onset_and_a_long_window_up_to_now_needs_a_reason(tmp_path: Path) -> None:
    past = "max(llm:one) / scalar(avg(avg_over_time(llm:one[30m] {{before}})))"
    assert bind_query(past, {}, ASKED)[0].endswith("avg_over_time(llm:one[30m] @ 3985.000)))")
    assert bind_query("x - {{onset_age_s}}", {}, ASKED)[0] == "x - 1000.000"
    load_trees([write(tmp_path, GOOD.replace("max(llm:one{{{scope}}})", past))])
    marked = "max_over_time(llm:one[1h])\n    window_ends_now: counts what happened in the last hour"
    load_trees([write(tmp_path, GOOD.replace("max(llm:one{{{scope}}})", marked))])
