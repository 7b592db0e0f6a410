"""Reading a model directory's tokenizer: bytes of each token, chat templates, clear errors."""

import json
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from engine.model.make import make_model
from engine.text.tokenizer import BadChatError, BadTokenizerError, load_tokenizer


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("tokenizer") / "tiny")


def make_llama_style_dir(path: Path) -> Path:
    """A tokenizer as SentencePiece models have it: U+2581 for a space, bytes as <0xNN>."""
    vocab = {
        "<unk>": 0,
        **{f"<0x{byte:02X}>": byte + 1 for byte in range(256)},
        "\u2581hi": 257,
        "hi": 258,
        "\u2581": 259,
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    path.mkdir(parents=True)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


@pytest.mark.parametrize("text", ["hello world", "naïve café", "你好🙂", "tabs\tand\nlines", "\x00\x7f"])
def test_decoding_gives_back_what_was_encoded(model_dir: Path, text: str) -> None:
    tokenizer = load_tokenizer(model_dir)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_ids_are_the_librarys_own(model_dir: Path) -> None:
    tokenizer, text = load_tokenizer(model_dir), "<|im_start|>one two\n" * 500 + "é🙂"
    assert list(tokenizer.encode(text)) == tokenizer.rust.encode(text).ids
    assert tokenizer.count(text) == len(tokenizer.encode(text, add_special_tokens=False))


def test_the_table_of_bytes_agrees_with_the_library(model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    for token_id in range(tokenizer.vocab_size):
        library = tokenizer.rust.decode([token_id], skip_special_tokens=True)
        assert tokenizer.bytes_of(token_id).decode("utf-8", "replace") == library


def test_special_tokens_are_no_text_but_have_a_name(model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    eos = tokenizer.eos_token_ids[0]
    assert tokenizer.bytes_of(eos) == b""
    assert tokenizer.piece(eos) == b"<|im_end|>"
    assert tokenizer.decode([eos]) == "<|im_end|>"
    assert tokenizer.decode([eos], skip_special_tokens=True) == ""


def test_ids_beyond_the_vocabulary_are_empty(model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    assert tokenizer.bytes_of(tokenizer.vocab_size + 5) == b""


def test_reads_sentencepiece_style_tokenizers(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_llama_style_dir(tmp_path / "llama"))
    assert tokenizer.bytes_of(257) == b" hi"
    assert tokenizer.bytes_of(0xE4 + 1) == b"\xe4"
    assert tokenizer.bytes_of(tokenizer.rust.token_to_id("</s>")) == b""
    assert tokenizer.decode([byte + 1 for byte in "你".encode()]) == "你"


def test_renders_a_conversation_with_the_models_template(model_dir: Path) -> None:
    tokenizer = load_tokenizer(model_dir)
    text = tokenizer.render_chat([{"role": "user", "content": "<hi> & 'you'"}])
    assert text == "<|im_start|>user\n<hi> & 'you'<|im_end|>\n<|im_start|>assistant\n"


def test_a_template_that_refuses_messages_gives_its_reason(tmp_path: Path) -> None:
    directory = make_llama_style_dir(tmp_path / "m")
    (directory / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(BadChatError, match="roles must alternate"):
        load_tokenizer(directory).render_chat([{"role": "user", "content": "x"}])


def test_a_template_can_not_reach_the_interpreter(tmp_path: Path) -> None:
    directory = make_llama_style_dir(tmp_path / "m")
    (directory / "chat_template.jinja").write_text("{{ ''.__class__.__mro__[1].__subclasses__() }}")
    with pytest.raises(BadChatError):
        load_tokenizer(directory).render_chat([{"role": "user", "content": "x"}])


def test_a_named_default_template_is_used(tmp_path: Path) -> None:
    directory = make_llama_style_dir(tmp_path / "m")
    templates = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "{{ messages[0].content }}"}]
    (directory / "tokenizer_config.json").write_text(json.dumps({"chat_template": templates}))
    assert load_tokenizer(directory).render_chat([{"role": "user", "content": "x"}]) == "x"


def test_without_a_template_chat_is_refused(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_llama_style_dir(tmp_path / "m"))
    with pytest.raises(BadChatError, match="/v1/completions"):
        tokenizer.render_chat([{"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("name", "content", "match"),
    [
        ("tokenizer.json", "{", "tokenizer.json"),
        ("tokenizer_config.json", "[]", "tokenizer_config.json: must hold a JSON object"),
        ("chat_template.jinja", "{% if %}", "chat_template.jinja: chat template, line 1"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, name: str, content: str, match: str) -> None:
    directory = make_llama_style_dir(tmp_path / "m")
    (directory / name).write_text(content)
    with pytest.raises(BadTokenizerError, match=match):
        load_tokenizer(directory)


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadTokenizerError, match=r"tokenizer\.json: missing"):
        load_tokenizer(tmp_path)


def test_a_decoder_we_do_not_know_is_refused(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(BadTokenizerError, match="decoder WordPiece is not supported"):
        load_tokenizer(tmp_path)
