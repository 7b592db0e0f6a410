"""A tokenizer from a GGUF file's metadata gives the ids of the original one, and those that llama.cpp gives."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import httpx
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from engine.model.directory import open_model
from engine.model.make import make_model
from engine.text.tokenizer import load_tokenizer
from fleetctl.kit.reserved_port import reserve_port
from tests.fixtures.gguf_model import write_gguf
from tests.fixtures.llama_server import llama_server

TEXTS = (
    "Hello, world!",
    "  two  spaces\n\n\nthree lines \t tab",
    "It's we'll THEY'RE they'd I'm'n",
    "1234567 12 3.14159 1,000,000 x2y3",
    "na\u00efve caf\u00e9 \u4f60\u597d\u4e16\u754c \U0001f680 \u0645\u0631\u062d\u0628\u0627",
    "def f(x):\n    return x**2  # end\r\n",
    "snake_case CamelCase HTTPServer a/b//c https://example.org/?q=1&r=2",
    " leading and trailing ",
    "...!?--- \u2026",
    "\n",
)
CHAT = "<|im_start|>user\nHi 42<|im_end|>\n<|im_start|>assistant\n"


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


def test_it_is_the_tokenizer_that_was_written(small: Path, tmp_path: Path) -> None:
    original, found = load_tokenizer(small), load_tokenizer(write_gguf(small, tmp_path / "small.gguf"))
    for text in (*TEXTS, CHAT):
        assert found.encode(text) == original.encode(text)
        assert found.decode(original.encode(text)) == original.decode(original.encode(text))
    assert found.token_bytes == original.token_bytes
    assert found.special_texts == original.special_texts
    assert set(found.eos_token_ids) >= {original.rust.token_to_id("<|im_end|>")}
    messages = [{"role": "user", "content": "Hi"}]
    assert found.render_chat(messages) == original.render_chat(messages)
    assert (found.tool_format, found.longest_token_bytes) == (original.tool_format, original.longest_token_bytes)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2", "tekken"])
def test_each_pre_tokenizer_cuts_as_llama_cpp_does(small: Path, tmp_path: Path, pre: str) -> None:
    _agrees_with_llama_cpp(write_gguf(small, tmp_path / "small.gguf", pre=pre))


def test_sentence_pieces_are_merged_as_llama_cpp_does(small: Path, tmp_path: Path) -> None:
    _agrees_with_llama_cpp(
        write_gguf(small, tmp_path / "small.gguf", pieces=_pieces(open_model(small).config.vocab_size - 259))
    )


def _pieces(count: int) -> list[str]:
    """The best ones first: what a training merged, in its order, and then single characters."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    corpus = files("engine").joinpath("data/corpus.txt").read_text(encoding="utf-8")
    trainer = trainers.BpeTrainer(vocab_size=count, show_progress=False, min_frequency=1, limit_alphabet=90)
    trained.train_from_iterator(corpus.splitlines(), trainer)
    ids = trained.get_vocab()
    ordered = sorted(ids, key=lambda text: ids[text])
    assert len(ordered) == count
    return [*(t for t in ordered if len(t) > 1), *(t for t in ordered if len(t) == 1)]


def _agrees_with_llama_cpp(file: Path) -> None:
    found = load_tokenizer(file)
    with llama_server(file, reserve_port()) as server:
        for text in TEXTS:
            body = {"content": text, "add_special": True, "parse_special": True}
            wanted = httpx.post(f"{server.url}/tokenize", json=body, timeout=60).json()["tokens"]
            assert list(found.encode(text)) == wanted, text
            assert found.decode(wanted, skip_special_tokens=True).strip(" ") == text.strip(" ")
