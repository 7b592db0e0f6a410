"""The tokenizer that a GGUF file carries in its metadata, built as `tokenizer.json` describes its own.

Two kinds: byte-level BPE ("gpt2"), whose way of cutting text into words is said by the name of a pre-tokenizer, and
SentencePiece's BPE ("llama"), which merges whatever pair makes the piece with the best score. Others, and names that
are not in the table, are refused: a tokenizer that is nearly right is wrong in ways that nobody sees.

    BadGgufError   ValueError: no tokenizer, or of a kind that can't be built; names no file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from engine.gguf.header import BadGgufError

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_SPACE = "\u2581"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True, slots=True)
class _Words:
    """How text is cut before it is merged, and what llama.cpp takes for granted with it."""

    pattern: str
    single_digits: bool = False
    is_nfc: bool = False
    ignores_merges: bool = False
    adds_bos: bool = False


_LLAMA3 = _Words(_WORDS.format(digits=r"\p{N}{1,3}"), ignores_merges=True, adds_bos=True)
_QWEN2 = _Words(_WORDS.format(digits=r"\p{N}"), is_nfc=True)
_DIGITS = _Words(_GPT2, single_digits=True)
# By llama.cpp's names for them (`tokenizer.ggml.pre`).
PRE_TOKENIZERS = {
    "gpt-2": _Words(_GPT2),
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "refact": _DIGITS,
    "codeshell": _DIGITS,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "tekken": _Words(_TEKKEN, ignores_merges=True, adds_bos=True),
}


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What `tokenizer.json` and `tokenizer_config.json` hold of a directory."""

    rust: Tokenizer
    settings: Mapping[str, Any]  # names of special tokens, the chat templates


def build_tokenizer(metadata: Mapping[str, Any]) -> GgufTokenizer:
    """Raises BadGgufError."""
    kind, tokens = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.tokens")
    if not kind or not isinstance(tokens, tuple) or not tokens:
        raise BadGgufError("no tokenizer in its metadata (tokenizer.ggml.tokens)")
    kinds = metadata.get("tokenizer.ggml.token_type", (_NORMAL,) * len(tokens))
    if not isinstance(kinds, tuple) or len(kinds) != len(tokens):
        raise BadGgufError(f"tokenizer.ggml.token_type: must be as many as the {len(tokens)} tokens")
    try:
        match kind:
            case "gpt2":
                rust, adds_bos = _byte_level(metadata, tokens)
            case "llama":
                rust, adds_bos = _sentence_pieces(metadata, tokens, kinds), True
            case _:
                raise BadGgufError(f"tokenizer.ggml.model: {kind!r} is not supported; gpt2 and llama are")
        _add_special(rust, tokens, kinds)
        _add_ends(rust, metadata, tokens, adds_bos)
    except BadGgufError:
        raise
    except Exception as exc:  # the library raises bare Exception for a bad vocabulary
        raise BadGgufError(f"tokenizer.ggml: {exc}") from exc
    return GgufTokenizer(rust, _settings(metadata, tokens))


def _byte_level(metadata: Mapping[str, Any], tokens: Sequence[str]) -> tuple[Tokenizer, bool]:
    name = metadata.get("tokenizer.ggml.pre")
    if name not in PRE_TOKENIZERS:
        raise BadGgufError(
            f"tokenizer.ggml.pre: {name!r} is not supported; supported are {', '.join(PRE_TOKENIZERS)}; "
            "serve the model's Hugging Face directory instead"
        )
    words = PRE_TOKENIZERS[name]
    merges = [_pair(merge) for merge in metadata.get("tokenizer.ggml.merges", ())]
    if not merges:
        raise BadGgufError("tokenizer.ggml.merges: missing")
    rust = Tokenizer(models.BPE(vocab=_ids(tokens), merges=merges, ignore_merges=words.ignores_merges))
    if words.is_nfc:
        rust.normalizer = normalizers.NFC()
    cut: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if words.single_digits else []
    cut.append(pre_tokenizers.Split(Regex(words.pattern), behavior="isolated"))
    cut.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    rust.pre_tokenizer = pre_tokenizers.Sequence(cut)
    rust.decoder = decoders.ByteLevel()
    return rust, words.adds_bos


def _sentence_pieces(metadata: Mapping[str, Any], tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, tuple) or len(scores) != len(tokens):
        raise BadGgufError(f"tokenizer.ggml.scores: must be as many as the {len(tokens)} tokens")
    unknown = next((tokens[i] for i, kind in enumerate(kinds) if kind == _UNKNOWN), None)
    plain = {text: i for i, text in enumerate(tokens) if kinds[i] == _NORMAL}
    rust = Tokenizer(
        models.BPE(
            vocab=_ids(tokens),
            merges=_merges_by_score(plain, scores),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    has_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    spaced = [normalizers.Prepend(_SPACE)] if has_prefix else []
    rust.normalizer = normalizers.Sequence([*spaced, normalizers.Replace(" ", _SPACE)])
    stripped = [decoders.Strip(" ", 1, 0)] if has_prefix else []
    rust.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped]
    )
    return rust


def _merges_by_score(plain: Mapping[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every pair of pieces that makes a piece, the best piece first; of equal ones those with the first tokens."""
    merges: list[tuple[float, int, int, str, str]] = []
    for text, token_id in plain.items():
        for at in range(1, len(text)):
            left, right = text[:at], text[at:]
            if left in plain and right in plain:
                merges.append((-scores[token_id], plain[left], plain[right], left, right))
    return [(left, right) for *_, left, right in sorted(merges)]


def _add_special(rust: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> None:
    added = [
        AddedToken(text, special=kind in (_CONTROL, _UNKNOWN), normalized=False)
        for text, kind in zip(tokens, kinds, strict=True)
        if kind in (_CONTROL, _UNKNOWN, _USER_DEFINED)
    ]
    rust.add_tokens(added)


def _add_ends(rust: Tokenizer, metadata: Mapping[str, Any], tokens: Sequence[str], adds_bos: bool) -> None:
    """What the model expects around each text: nothing, a first token, a last one."""
    begin = _token(metadata, tokens, "bos") if metadata.get("tokenizer.ggml.add_bos_token", adds_bos) else None
    end = _token(metadata, tokens, "eos") if metadata.get("tokenizer.ggml.add_eos_token", False) else None
    ends = [text for text in (begin, end) if text is not None]
    if not ends:
        return
    single = [*([begin] if begin else []), "$A", *([end] if end else [])]
    ids = [(text, rust.token_to_id(text)) for text in dict.fromkeys(ends)]
    rust.post_processor = processors.TemplateProcessing(single=single, special_tokens=ids)


def _settings(metadata: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, Any]:
    names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
    found = {name: _token(metadata, tokens, key) for key, name in names.items()}
    settings: dict[str, Any] = {name: text for name, text in found.items() if text is not None}
    template = metadata.get("tokenizer.chat_template")
    if template is not None:
        named = {"default": template}
        for name in metadata.get("tokenizer.chat_templates", ()):
            named[name] = metadata.get(f"tokenizer.chat_template.{name}", template)
        settings["chat_template"] = [{"name": name, "template": text} for name, text in named.items()]
    return settings


def _token(metadata: Mapping[str, Any], tokens: Sequence[str], key: str) -> str | None:
    index = metadata.get(f"tokenizer.ggml.{key}_token_id")
    return tokens[index] if isinstance(index, int) and 0 <= index < len(tokens) else None


def _ids(tokens: Sequence[str]) -> dict[str, int]:
    found = {text: i for i, text in enumerate(tokens)}
    if len(found) != len(tokens):
        raise BadGgufError(f"tokenizer.ggml.tokens: {len(tokens) - len(found)} texts are there twice")
    return found


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    return left, right
