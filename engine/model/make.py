"""Makes a small, real model directory: a Llama decoder with random weights and a tokenizer trained on our own text.

For demos, tests and first steps without a download. It has every file that a published model has, so that nothing
downstream knows the difference; only its words make no sense. The same seed gives the same bytes.
Needs numpy, tokenizers and safetensors; free of torch.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.model.config import ModelConfig, parse_config
from engine.model.directory import MANIFEST, SINGLE, BadModelError, open_model, sha256_of
from engine.model.tensor_names import expected_tensors

Progress = Callable[[str, float], None]

# Raised when what is written changes, so that a directory made by an older version is made again.
RECIPE = 2
VOCAB_SIZE = 1_536
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIALS = (END_OF_TEXT, TURN_START, TURN_END)
# Tools as Hermes and Qwen write them. Without tools it is plain ChatML.
CHAT_TEMPLATE = (
    "{% if tools %}"
    "{{ '<|im_start|>system\\n# Tools\\n<tools>' }}"
    "{% for tool in tools %}{{ '\\n' + tool | tojson }}{% endfor %}"
    '{{ \'\\n</tools>\\nCall one as <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call><|im_end|>\\n\' }}'
    "{% endif %}"
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] }}"
    "{% for call in message['tool_calls'] or [] %}"
    "{{ '\\n<tool_call>\\n{\"name\": ' + call.function.name | tojson + ', \"arguments\": ' }}"
    "{{ call.function.arguments | tojson + '}\\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
MAX_POSITIONS = 8_192


def make_model(directory: Path | str, *, seed: int = 0, progress: Progress | None = None) -> Path:
    """The directory, holding a whole and verified model made from `seed`.

    One that is there and whole is used as it is; a half-written or damaged one is replaced. Files are written beside
    it and moved into place at once, so nobody ever sees a part. `progress` is called with ("making", 0 to 1).
    Raises BadModelError when the directory holds something that we did not make.
    """
    target = Path(directory)
    tell = progress or (lambda phase, done: None)
    tell("making", 0.0)
    if _is_whole(target, seed):
        tell("making", 1.0)
        return target
    _refuse_foreign(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.making-", dir=target.parent))
    try:
        _write_model(scratch, seed, tell)
        scratch.chmod(0o755)
        _swap_in(scratch, target, seed)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    tell("making", 1.0)
    return target


def _is_whole(target: Path, seed: int) -> bool:
    if _recipe_of(target) != {"recipe": RECIPE, "seed": seed}:
        return False
    try:
        return open_model(target).is_verified
    except BadModelError:
        return False


def _recipe_of(target: Path) -> object:
    try:
        return json.loads((target / MANIFEST).read_bytes()).get("made_by")
    except (OSError, ValueError, AttributeError):
        return None


def _refuse_foreign(target: Path) -> None:
    """Replacing deletes: only an empty directory, or one with our mark, may go."""
    if not target.exists():
        return
    if not target.is_dir():
        raise BadModelError(target, "is a file", "choose another directory for the made model")
    if any(target.iterdir()) and not isinstance(_recipe_of(target), dict):
        raise BadModelError(
            target, "holds files that were not made here", "choose another directory, or empty this one"
        )


def _swap_in(scratch: Path, target: Path, seed: int) -> None:
    """Renames into place. Another process may have won the race; its whole model is as good as ours."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
        target.replace(old)
        shutil.rmtree(old, ignore_errors=True)
    try:
        scratch.replace(target)
    except OSError:
        if not _is_whole(target, seed):
            raise


def _write_model(directory: Path, seed: int, tell: Progress) -> None:
    tokenizer = _train_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    tell("making", 0.5)
    vocabulary = tokenizer.get_vocab()
    ids = {name: vocabulary[name] for name in SPECIALS}
    tree = _config_tree(tokenizer.get_vocab_size(), ids)
    _write_json(directory / "config.json", tree)
    for name, content in _small_files(ids).items():
        _write_json(directory / name, content)
    weights = dict(_weights(parse_config(tree), seed, _muted_tokens(tokenizer)))
    tell("making", 0.8)
    save_file(weights, str(directory / SINGLE), metadata={"format": "pt"})
    (directory / SINGLE).chmod(0o644)
    listed = {p.name: {"sha256": sha256_of(p), "bytes": p.stat().st_size} for p in sorted(directory.iterdir())}
    _write_json(directory / MANIFEST, {"version": 1, "made_by": {"recipe": RECIPE, "seed": seed}, "files": listed})


def _train_tokenizer() -> Tokenizer:
    """Byte-level BPE: every text has tokens, and every token has bytes."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        min_frequency=2,
        show_progress=False,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=[AddedToken(name, special=True, normalized=False) for name in SPECIALS],
    )
    corpus = files("engine").joinpath("data/corpus.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator(corpus.splitlines(keepends=True), trainer)
    return tokenizer


def _config_tree(vocab_size: int, ids: dict[str, int]) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "bos_token_id": ids[END_OF_TEXT],
        "eos_token_id": [ids[TURN_END], ids[END_OF_TEXT]],
        "pad_token_id": ids[END_OF_TEXT],
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": 128,
        "intermediate_size": 344,
        "max_position_embeddings": MAX_POSITIONS,
        "mlp_bias": False,
        "num_attention_heads": 4,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "vocab_size": vocab_size,
    }


def _small_files(ids: dict[str, int]) -> dict[str, dict[str, object]]:
    names = {"bos_token": END_OF_TEXT, "eos_token": TURN_END, "pad_token": END_OF_TEXT}
    return {
        "generation_config.json": {
            "bos_token_id": ids[END_OF_TEXT],
            "eos_token_id": [ids[TURN_END], ids[END_OF_TEXT]],
            "pad_token_id": ids[END_OF_TEXT],
            "do_sample": True,
            "temperature": 1.0,
        },
        "special_tokens_map.json": {**names, "additional_special_tokens": [TURN_START, TURN_END]},
        "tokenizer_config.json": {
            **names,
            "additional_special_tokens": [TURN_START, TURN_END],
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": MAX_POSITIONS,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    }


def _muted_tokens(tokenizer: Tokenizer) -> list[int]:
    """Special tokens and lone bytes above ASCII: drawn rarely, so that answers are words, as long as asked for."""
    alphabet = {c for c in pre_tokenizers.ByteLevel.alphabet() if not "!" <= c <= "~"}
    return [token_id for text, token_id in tokenizer.get_vocab().items() if text in SPECIALS or text in alphabet]


def _weights(config: ModelConfig, seed: int, muted: list[int]) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Random weights, scaled so that activations keep their size and the next token is neither certain nor uniform."""
    random = np.random.default_rng(seed)
    for name, shape in expected_tensors(config).items():
        if len(shape) == 1:
            yield name, np.ones(shape, np.float32)
            continue
        scale = 1.0 if name.startswith("model.embed") else shape[1] ** -0.5
        values = random.standard_normal(shape, np.float32) * np.float32(scale)
        if name == "lm_head.weight":
            values *= np.float32(2.5)  # logits' standard deviation
            values[muted] = 0.0
        yield name, values


def _write_json(path: Path, tree: object) -> None:
    path.write_text(json.dumps(tree, indent=2, sort_keys=True) + "\n", encoding="utf-8")
