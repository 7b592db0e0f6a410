from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from engine.model.directory import BadModelError, open_model
from engine.model.make import make_model
from engine.text.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "small")


def _digests(directory: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in sorted(directory.iterdir())}


def test_another_process_makes_the_same_bytes(made: Path, tmp_path: Path) -> None:
    code = "import sys; from engine.model.make import make_model; make_model(sys.argv[1])"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "again")], check=True)
    assert _digests(tmp_path / "again") == _digests(made)


def test_another_seed_makes_other_weights_and_the_same_tokenizer(made: Path, tmp_path: Path) -> None:
    other = _digests(make_model(tmp_path / "other", seed=1))
    assert other["model.safetensors"] != _digests(made)["model.safetensors"]
    assert other["tokenizer.json"] == _digests(made)["tokenizer.json"]


def test_transformers_loads_it_and_speaks(made: Path) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(made)
    model = transformers.AutoModelForCausalLM.from_pretrained(made).eval()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Why is the node slow?"}], add_generation_prompt=True, return_tensors="pt"
    )
    torch.manual_seed(0)
    output = model.generate(**prompt, max_new_tokens=20, do_sample=True)
    assert output.shape[1] > prompt["input_ids"].shape[1]
    assert model.config.vocab_size == len(tokenizer) > 1_024


def test_the_engine_and_transformers_render_chats_alike(made: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße — 你好?"}]
    own = load_tokenizer(made)
    text = own.render_chat(messages)
    theirs = transformers.AutoTokenizer.from_pretrained(made)
    assert text == theirs.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    assert list(own.encode(text)) == theirs(text)["input_ids"]
    assert own.decode(own.encode("Grüße — 你好?")) == "Grüße — 你好?"
    assert set(own.eos_token_ids) == set(open_model(made).config.eos_token_ids) == {0, 2}


def test_a_whole_directory_is_used_as_it_is(made: Path) -> None:
    before = {p: p.stat().st_mtime_ns for p in made.iterdir()}
    seen: list[tuple[str, float]] = []
    assert make_model(made, progress=lambda phase, done: seen.append((phase, done))) == made
    assert {p: p.stat().st_mtime_ns for p in made.iterdir()} == before
    assert seen == [("making", 0.0), ("making", 1.0)]


@pytest.mark.parametrize("damage", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_damaged_directory_is_made_again(tmp_path: Path, damage: str) -> None:
    target = make_model(tmp_path / "m")
    whole = _digests(target)
    (target / damage).write_bytes((target / damage).read_bytes()[:-10])
    with pytest.raises(BadModelError):
        open_model(target)
    assert _digests(make_model(target)) == whole
    assert [p.name for p in tmp_path.iterdir()] == ["m"], "nothing may be left beside it"


def test_an_empty_directory_is_filled(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    assert open_model(make_model(tmp_path / "m")).is_verified


def test_a_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BadModelError, match="not made here"):
        make_model(tmp_path)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with pytest.raises(BadModelError, match="is a file"):
        make_model(tmp_path / "notes.txt")


def test_a_failed_making_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("engine.model.make.save_file", full_disk)
    with pytest.raises(OSError, match="No space"):
        make_model(tmp_path / "m")
    assert list(tmp_path.iterdir()) == []


def test_making_and_checking_need_no_torch() -> None:
    code = "import sys, engine.model.make, engine.model.directory; sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
