from __future__ import annotations

import json
import re
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.protocol.grammar import (
    MAX_SCHEMA_DEPTH,
    BadGrammarError,
    check_schema,
    checked_size,
    choice_grammar,
    json_grammar,
    lark_grammar,
    parse_schema,
    regex_grammar,
)
from engine.text.grammar_compiler import GrammarCompiler, allowed_ids, without
from tests.fixtures.grammar import PERSON, drawn_text, make_book, tiny_tokenizer

BOOK = make_book()
EOS = tiny_tokenizer().eos_token_ids

SCHEMAS: dict[str, dict[str, Any]] = {
    "object": PERSON,
    "optional": {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}}}
    | {"additionalProperties": False},
    "nested": {
        "$defs": {"point": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "maxItems": 2}},
        "type": "object",
        "properties": {"from": {"$ref": "#/$defs/point"}, "to": {"$ref": "#/$defs/point"}},
        "required": ["from", "to"],
        "additionalProperties": False,
    },
    "union": {"anyOf": [{"type": "integer", "minimum": 1, "maximum": 99}, {"const": "none"}, {"type": "null"}]},
    "enum": {"enum": ["é", 'quo"te', 1, None, True, ["x"]]},
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "date": {"type": "string", "format": "date"},
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_what_is_drawn_from_a_schema_validates(name: str) -> None:
    validator = jsonschema_rs.validator_for(SCHEMAS[name])
    for seed in range(8):
        text = drawn_text(BOOK, json_grammar(SCHEMAS[name]), seed)
        validator.validate(json.loads(text))


def _schemas() -> st.SearchStrategy[dict[str, Any]]:
    leaves = st.one_of(
        st.builds(
            lambda low, size: {"type": "integer", "minimum": low, "maximum": low + size},
            st.integers(-50, 50),
            st.integers(0, 500),
        ),
        st.builds(lambda size: {"type": "string", "maxLength": size}, st.integers(0, 8)),
        st.lists(st.one_of(st.text(max_size=6), st.integers(-9, 9), st.none()), min_size=1, max_size=4).map(
            lambda values: {"enum": values}
        ),
        st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "pattern": "^(ab|c){1,3}$"}]),
    )
    names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=5)

    def objects(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
        return st.dictionaries(names, inner, max_size=3).flatmap(
            lambda properties: (
                st.lists(st.sampled_from(sorted(properties)), unique=True)
                .map(lambda required: {"required": required})
                .map(lambda more: {"type": "object", "properties": properties, "additionalProperties": False, **more})
                if properties
                else st.just({"type": "object", "additionalProperties": False})
            )
        )

    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            objects(inner),
            st.builds(
                lambda items, size: {"type": "array", "items": items, "maxItems": size}, inner, st.integers(0, 3)
            ),
        ),
        max_leaves=5,
    )


@settings(max_examples=60, deadline=None)
@given(schema=_schemas(), seed=st.integers(0, 2**32))
def test_what_is_drawn_from_any_schema_validates(schema: dict[str, Any], seed: int) -> None:
    text = drawn_text(BOOK, json_grammar(schema), seed)
    jsonschema_rs.validate(schema, json.loads(text))


def test_classes_of_a_regex_are_ascii() -> None:
    tokenizer = tiny_tokenizer()
    for pattern, fits, does_not in ((r"\d", "7", "٧"), (r"\w", "a", "é"), (r"\s", " ", "\u2003")):
        assert BOOK.matcher(regex_grammar(pattern), tokenizer.encode(fits)).mask().any()
        with pytest.raises(BadGrammarError):
            BOOK.matcher(regex_grammar(pattern), tokenizer.encode(does_not)).mask()


PATTERNS = [
    *("a\nb", "a/b", r"a\/b", "a*", r"[/\n]{2}", r"\d{3}-\d{4}", r"[ab]{2}c?"),
    *(r"(foo|bar)+x", r"a/b\.c", r"[^a-z]{1,9}"),
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_what_is_drawn_from_a_regex_matches_from_end_to_end(pattern: str) -> None:
    for seed in range(6):
        assert re.fullmatch(pattern, drawn_text(BOOK, regex_grammar(pattern), seed))


def test_choices_are_drawn_and_nothing_else() -> None:
    choices = ["yes", "yes, but", 'a "quoted" one', "日本", "back\\slash", "two\nlines"]
    drawn = {drawn_text(BOOK, choice_grammar(choices), seed) for seed in range(40)}
    assert drawn <= set(choices)
    assert len(drawn) > 3


@pytest.mark.parametrize(
    "text", ['start: "x" num\nnum: /[0-9]{1,3}/', 'root ::= "x" [0-9] [0-9]? [0-9]?'], ids=["lark", "gbnf"]
)
def test_grammars_in_both_syntaxes(text: str) -> None:
    for seed in range(5):
        assert re.fullmatch(r"x[0-9]{1,3}", drawn_text(BOOK, lark_grammar(text), seed))


def test_whitespace_is_bounded_and_can_be_forbidden() -> None:
    for seed in range(10):
        assert not re.search(r"\s{43}", drawn_text(BOOK, json_grammar(PERSON), seed))
        text = drawn_text(BOOK, json_grammar(SCHEMAS["nested"], whitespace=None), seed)
        assert not re.search(r"\s", text)


def test_pretty_and_compact_json_are_both_allowed() -> None:
    value = {"name": "x", "age": 3, "tags": ["a", "b"]}
    for text in (json.dumps(value), json.dumps(value, indent=4), json.dumps(value, separators=(",", ":"))):
        tokens = tiny_tokenizer().encode(text)
        assert BOOK.matcher(json_grammar(PERSON), tokens).mask().any()


def test_the_end_is_allowed_only_where_the_grammar_may_end() -> None:
    grammar = regex_grammar("ab?")
    vocab = tiny_tokenizer().vocab_size
    matcher = BOOK.matcher(grammar)
    seen = []
    for token_id in tiny_tokenizer().encode("a"):
        seen.append(set(allowed_ids(matcher.mask(), vocab)) & set(EOS))
        matcher.accept_token(token_id)
    assert not any(seen)
    assert set(allowed_ids(matcher.mask(), vocab)) > set(EOS)
    over = BOOK.matcher(grammar, tiny_tokenizer().encode("ab"))
    assert set(allowed_ids(over.mask(), vocab)) == set(EOS)
    over.accept_token(EOS[0])
    assert set(allowed_ids(over.mask(), vocab)) == set(EOS)


def test_a_matcher_made_from_tokens_goes_on_as_the_one_that_took_them() -> None:
    grammar = json_grammar(PERSON)
    tokens = tiny_tokenizer().encode('{"name": "ab", "age": 12, "tags": ["a"]}')
    matcher = BOOK.matcher(grammar)
    for count, token_id in enumerate(tokens):
        assert (BOOK.matcher(grammar, tokens[:count]).mask() == matcher.mask()).all()
        matcher.accept_token(token_id)


def test_tokens_that_do_not_fit_are_refused_by_position() -> None:
    with pytest.raises(BadGrammarError, match="output token 1 does not fit"):
        BOOK.matcher(regex_grammar("[a]+"), tiny_tokenizer().encode("a") + tiny_tokenizer().encode("Q")).mask()


def test_a_grammar_that_takes_too_long_is_given_up() -> None:
    # Each token can be read in ever more ways.
    grammar = lark_grammar('start: a\na: a a a | "x"? "y"? | b\nb: a b | a')
    with pytest.raises(BadGrammarError, match=r"items|takes"):
        BOOK.matcher(grammar, tiny_tokenizer().encode("x") * 400).mask()


def test_a_grammar_that_is_too_costly_from_its_second_token_on_does_not_compile() -> None:
    """Its client learns it before anything was begun."""
    properties = {f"p{i}": {"type": "string"} for i in range(900)}
    with pytest.raises(BadGrammarError, match="items"):
        BOOK.compile(json_grammar({"type": "object", "properties": properties}))


@pytest.mark.parametrize("pattern", ["a", "a?", "(ab)*"])
def test_a_grammar_that_may_end_at_once_compiles(pattern: str) -> None:
    BOOK.compile(regex_grammar(pattern))


def test_without_takes_tokens_out_unless_nothing_would_be_left() -> None:
    matcher = BOOK.matcher(regex_grammar("[abc]"))
    mask = matcher.mask()
    ids = [int(i) for i in allowed_ids(mask, 10_000)]
    assert len(ids) == 3
    assert list(allowed_ids(without(mask, ids[:2]), 10_000)) == ids[2:]
    assert list(allowed_ids(without(mask, ids), 10_000)) == ids
    assert list(allowed_ids(without(mask, [-1, 10**9]), 10_000)) == ids
    assert list(allowed_ids(mask, 10_000)) == ids, "the mask itself stays"


@pytest.mark.parametrize("padding", [-5, 0, 1, 31, 500])
def test_a_vocabulary_of_another_size_than_the_tokenizers(padding: int) -> None:
    tokenizer = tiny_tokenizer()
    size = tokenizer.vocab_size + padding
    book = GrammarCompiler(lambda: tokenizer, vocab_size=size, eos_token_ids=EOS)
    mask = book.matcher(regex_grammar("(?s:.)*")).mask()
    assert len(mask) == -(-size // 32)
    assert max(allowed_ids(mask, 10**9)) < min(size, tokenizer.vocab_size)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "foo"}, "foo"),
        ({"type": "object", "not": {}}, "not"),
        ({"$ref": "http://example.com/x"}, "example.com"),
        ({"$ref": "#/$defs/x"}, "does not exist"),
        ({"enum": []}, "Unsatisfiable"),
        ({"type": "string", "pattern": "("}, "regex"),
        ({"type": "integer", "minimum": 5, "maximum": 1}, "Unsatisfiable"),
        ({"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "NoExtension"),
        # A client's options must not loosen what is checked.
        ({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}, "uniqueItems"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_schemas_that_can_not_be_kept_to_are_refused_with_the_reason(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(BadGrammarError, match=words):
        BOOK.compile(json_grammar(schema))


def _deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(levels):
        schema = {"type": "array", "items": schema}
    return schema


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (_deep(MAX_SCHEMA_DEPTH + 1), "deeper"),
        ({"enum": list(range(20_000))}, "values"),
        ({"enum": ["x" * 5000]}, "longer"),
        ({"enum": [f"{i:04}" * 100 for i in range(500)]}, "larger"),
    ],
    ids=["depth", "values", "string", "bytes"],
)
def test_schemas_beyond_the_limits_are_refused(schema: dict[str, Any], words: str) -> None:
    with pytest.raises(BadGrammarError, match=words):
        json_grammar(schema)


def _linked(num_links: int) -> dict[str, Any]:
    links = {f"a{i}": {"type": "array", "items": {"$ref": f"#/$defs/a{i + 1}"}} for i in range(num_links)}
    return {"$defs": {**links, f"a{num_links}": {"type": "integer"}}, "$ref": "#/$defs/a0"}


def test_depth_is_counted_along_references_and_the_place_is_named() -> None:
    check_schema(_linked(100))
    with pytest.raises(BadGrammarError, match=r"deeper than 256 along its \$refs") as refused:
        check_schema(_linked(1300))
    assert refused.value.where.startswith("$defs.a12")
    escaped = {"a/b~c": {"items": _linked(200)["$defs"]["a0"]}, "$defs": _linked(200)["$defs"]}
    with pytest.raises(BadGrammarError, match="along"):
        check_schema({**escaped, "$ref": "#/a~1b~0c/items"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}}},
        {"$defs": {f"a{i}": {"items": {"$ref": f"#/$defs/a{(i + 1) % 40}"}} for i in range(40)}},
        {"$defs": {f"a{i}": {"anyOf": [{"$ref": f"#/$defs/a{i + 1}"}] * 8} for i in range(40)}},
        {"$ref": "#/$defs/x"},
        {"properties": {"$ref": {"type": "string"}}},
    ],
    ids=["tree", "ring", "shared", "nowhere", "a property of that name"],
)
def test_references_that_are_not_deep_pass(schema: dict[str, Any]) -> None:
    check_schema(schema)


@pytest.mark.parametrize("text", ["{", "[]", "1", '{"a": NaN}', "[" * 50_000, "x" * 70_000])
def test_schema_texts_that_are_no_objects_are_refused(text: str) -> None:
    with pytest.raises(BadGrammarError):
        parse_schema(text)


@pytest.mark.parametrize(
    "build",
    [
        lambda: BOOK.compile(regex_grammar("(?=a)")),
        lambda: BOOK.compile(regex_grammar("x" * 5000)),
        lambda: BOOK.compile(lark_grammar("start: nowhere")),
        lambda: BOOK.compile(lark_grammar("")),
        lambda: BOOK.compile(lark_grammar('start: "' + "x" * 20_000 + '"')),
        lambda: json_grammar({"const": 10**400}),
        lambda: json_grammar({"const": float("inf")}),
        lambda: json_grammar({"type": "string", "pattern": "\ud800"}),
        lambda: regex_grammar("\ud800"),
        lambda: lark_grammar('start: "\ud800"'),
        lambda: choice_grammar(["\ud800"]),
        lambda: checked_size("\ud800"),
        lambda: json_grammar(parse_schema('{"enum": ["\\ud800"]}')),
        lambda: BOOK.compile(regex_grammar("(" * 2000 + "a" + ")" * 2000)),
        lambda: BOOK.compile(lark_grammar("start: start")),
        lambda: BOOK.compile(lark_grammar("start: <[999999]>")),
        lambda: choice_grammar([]),
        lambda: choice_grammar(["a", ""]),
        lambda: choice_grammar(["a"] * 2000),
        lambda: BOOK.compile("not llguidance's form"),
        lambda: BOOK.compile('{"grammars": []}'),
        lambda: checked_size("x" * 300_000),
    ],
)
def test_other_bad_grammars_are_refused(build: Any) -> None:
    with pytest.raises(BadGrammarError):
        build()


def test_a_model_without_an_end_of_sequence_has_no_grammars() -> None:
    tokenizer = tiny_tokenizer()
    book = GrammarCompiler(lambda: tokenizer, vocab_size=None, eos_token_ids=())
    with pytest.raises(BadGrammarError, match="end-of-sequence"):
        book.compile(regex_grammar("a"))
