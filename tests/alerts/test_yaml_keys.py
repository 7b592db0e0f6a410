"""Where the keys of a YAML file stand, and which are given twice."""

from __future__ import annotations

import yaml

from alerts.yaml_keys import YamlKeys, read_keys


def keys_of(text: str) -> YamlKeys:
    return read_keys(yaml.compose(text, Loader=yaml.SafeLoader))


def test_each_key_that_is_given_twice_is_told_with_its_own_line() -> None:
    keys = keys_of("b:\n  - x: 1\n  - x: 1\n    x: 2\na:\n  y: 1\nb: 3\n")
    assert [(str(one), one.line) for one in keys.twice] == [("'b[1].x' is given twice", 4), ("'b' is given twice", 7)]


def test_what_is_not_in_the_file_stands_where_its_parent_does() -> None:
    keys = keys_of("a:\n  b:\n    - c: 1\n")
    assert keys.line_of("a", "b", 0, "c") == 3
    assert keys.line_of("a", "b", 0, "missing", "deeper") == 3
    assert keys.line_of("a", "missing") == 1
    assert keys.line_of("missing") == 0
    assert keys_of("").line_of("a") == 0


def test_a_key_of_a_merged_mapping_may_be_given_again_and_two_may_be_merged() -> None:
    assert keys_of("a: &a {x: 1}\nb: &b {y: 1}\nc:\n  <<: *a\n  <<: *b\n  x: 2\n").twice == ()


def test_anchors_in_anchors_are_walked_once() -> None:
    """Ten lines of ten aliases each are ten thousand million places."""
    ten = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 11))
    keys = keys_of(f"a0: &a0 [{{x: 1, x: 2}}]\n{ten}\n")
    assert [str(one) for one in keys.twice] == ["'a0[0].x' is given twice"]
    assert keys.line_of("a10") == 11


def test_a_mapping_within_itself_ends() -> None:
    assert keys_of("a: &a {b: *a}").line_of("a", "b", "b") == 1
