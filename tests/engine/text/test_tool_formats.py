from __future__ import annotations

import json

import jsonschema_rs
import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as RustTokenizer

from engine.model.make import CHAT_TEMPLATE
from engine.protocol.grammar import BadGrammarError
from engine.text.tokenizer import Tokenizer, load_tokenizer
from engine.text.tool_formats import FORMATS, Function, ToolFormatName, detect_format, tools_grammar
from engine.text.tool_stream import ToolStream
from tests.fixtures.engine import tiny_model_dir
from tests.fixtures.grammar import PERSON, draw, make_book

FUNCTIONS = [Function("get_person", PERSON), Function("nothing", None)]


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        (CHAT_TEMPLATE, "hermes"),
        ("{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]", "mistral"),
        ("{% if tools is not none %}<|python_tag|>{% endif %}", "llama3_json"),
        ('{{ tools }} {"name": "f", "parameters": {}} ipython', "llama3_json"),
        ("{{ tools }}<tool_call>\n<function=f>", None),
        ("{{ tools }}<tool_call>f\n<arg_key>", None),
        ("{{ messages }}", None),
        ("", None),
    ],
)
def test_the_chat_template_shows_the_format(template: str, expected: str | None) -> None:
    assert detect_format(template) == expected


def _tokenizer(tmp_path_factory: pytest.TempPathFactory, specials: tuple[str, ...]) -> Tokenizer:
    """The tiny model's, with more special tokens."""
    directory = tmp_path_factory.mktemp("tokenizer")
    rust = RustTokenizer.from_file(str(tiny_model_dir() / "tokenizer.json"))
    rust.add_special_tokens([AddedToken(text, special=True) for text in specials])
    rust.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"eos_token_id": 2}))
    return load_tokenizer(directory)


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize(
    "specials", [(), ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]")], ids=["text", "special"]
)
@pytest.mark.parametrize("name", FORMATS)
def test_what_the_grammar_lets_be_written_is_read_back_as_calls_that_validate(
    tmp_path_factory: pytest.TempPathFactory, name: ToolFormatName, specials: tuple[str, ...], is_parallel: bool
) -> None:
    tokenizer = _tokenizer(tmp_path_factory, specials)
    book = make_book(tokenizer)
    grammar = tools_grammar(name, FUNCTIONS, is_parallel=is_parallel, special_ids=tokenizer.special_ids)
    counts = set()
    for seed in range(10):
        stream = ToolStream(name)
        bytes_of = tokenizer.bytes_showing(FORMATS[name].specials)
        output = draw(book, grammar, seed, eos=tokenizer.eos_token_ids)
        content, _ = stream.push(b"".join(map(bytes_of, output)).decode())
        assert content + stream.finish()[0] == ""
        assert stream.has_whole_calls
        counts.add(len(stream.calls))
        for call in stream.calls:
            arguments = json.loads(call.arguments)
            assert call.name in ("get_person", "nothing")
            jsonschema_rs.validate(PERSON, arguments) if call.name == "get_person" else None
            assert call.name == "get_person" or arguments == {}
    assert counts == {1} if not is_parallel else max(counts) > 1


def test_calls_or_content_of_a_schema() -> None:
    tokenizer = load_tokenizer(tiny_model_dir())
    grammar = tools_grammar(
        "hermes", FUNCTIONS, is_parallel=False, special_ids=tokenizer.special_ids, content_schema={"enum": [7]}
    )
    book = make_book(tokenizer)
    firsts = {tokenizer.decode(draw(book, grammar, seed, eos=tokenizer.eos_token_ids))[:1] for seed in range(20)}
    assert firsts == {"7", "<"}


def test_a_bad_schema_names_its_function() -> None:
    with pytest.raises(BadGrammarError) as found:
        tools_grammar("hermes", [FUNCTIONS[0], Function("g", {"enum": ["x" * 9999]})], is_parallel=True, special_ids={})
    assert found.value.where == "1.enum.0"
