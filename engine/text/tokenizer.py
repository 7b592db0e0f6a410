"""Text to token ids, chat messages to text, and the bytes that each token id stands for.

Reads `tokenizer.json` (and the chat template beside it) of a model directory, or the metadata of a GGUF file, through
the tokenizers library. The
table of bytes is what the detokenizer works on, so that text never depends on how tokens were grouped into steps.
Free of torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Encoding
from tokenizers import Tokenizer as RustTokenizer

from engine.gguf.config_tree import eos_token_ids as end_token_ids
from engine.gguf.header import BadGgufError, find_gguf, is_gguf, read_gguf
from engine.text.gguf_tokenizer import build_tokenizer
from engine.text.tool_formats import ToolFormatName, detect_format

THINKING_MARKS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"), ("<seed:think>", "</seed:think>"))
END_MARK = "\ue0c5\ue0d1"  # stands where a message ends while a chat is rendered that goes on with it


class BadTokenizerError(ValueError):
    """The model directory's tokenizer can't be used; the message names the file and the remedy."""


class BadChatError(ValueError):
    """These messages can't be rendered with this model's chat template."""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Immutable; safe to use from several threads."""

    rust: RustTokenizer
    token_bytes: tuple[bytes, ...]  # by id; special tokens are empty: they are never text
    special_texts: Mapping[int, str]
    template: jinja2.Template | None
    template_names: Mapping[str, str]  # bos_token, eos_token and such, for the template
    eos_token_ids: tuple[int, ...]
    longest_token_bytes: int | None  # None: any stretch of text may become one token
    tool_template: jinja2.Template | None = None  # where a model has one of its own for tools
    tool_format: ToolFormatName | None = None  # of calls, as the template shows them

    def least_tokens(self, num_chars: int) -> int:
        """What a text of so many characters can't have less of."""
        return 0 if self.longest_token_bytes is None else num_chars // self.longest_token_bytes

    @property
    def vocab_size(self) -> int:
        """Tokens of the tokenizer, added ones among them; the model's may be larger."""
        return len(self.token_bytes)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a text."""
        return tuple(self._encoding(text, add_special_tokens=add_special_tokens).ids)

    def encode_pair(self, first: str, second: str) -> tuple[int, ...]:
        """Token ids of two texts as the tokenizer joins a pair."""
        return tuple(self.rust.encode(first, second).ids)

    def count(self, text: str) -> int:
        """Tokens of a text alone, without the ids: they are many."""
        return len(self._encoding(text, add_special_tokens=False))

    def _encoding(self, text: str, *, add_special_tokens: bool) -> Encoding:
        # Unlike `encode` it lets other threads run, and it leaves out the offsets, which cost half of the time.
        return self.rust.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0]

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = False) -> str:
        """Text of whole tokens; bytes that are no UTF-8 become U+FFFD."""
        parts = (
            self.bytes_of(t) if skip_special_tokens or t not in self.special_texts else self.special_texts[t].encode()
            for t in token_ids
        )
        return b"".join(parts).decode("utf-8", "replace")

    def bytes_of(self, token_id: int) -> bytes:
        """Ids past the vocabulary are empty: embeddings are often padded beyond it."""
        return self.token_bytes[token_id] if 0 <= token_id < len(self.token_bytes) else b""

    @property
    def special_ids(self) -> dict[str, int]:
        """Ids of the special tokens by their text."""
        return {text: token_id for token_id, text in self.special_texts.items()}

    @property
    def thinking_marks(self) -> tuple[int, int] | None:
        """The tokens that open and close what a model thinks before it answers; None: it has none."""
        for pair in THINKING_MARKS:
            start, end = (self.rust.token_to_id(mark) for mark in pair)
            if start is not None and end is not None:
                return start, end
        return None

    def bytes_showing(self, texts: Sequence[str]) -> Callable[[int], bytes]:
        """As `bytes_of`, but these special tokens are text: the marks of tool calls are."""
        shown = {token_id: text.encode() for token_id, text in self.special_texts.items() if text in texts}
        if not shown:
            return self.bytes_of
        return lambda token_id: shown.get(token_id) or self.bytes_of(token_id)

    def piece(self, token_id: int) -> bytes:
        """As `bytes_of`, but special tokens by their name: for logprobs."""
        name = self.special_texts.get(token_id)
        return self.bytes_of(token_id) if name is None else name.encode()

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """Prompt text of a conversation, with the tools that may be called in it, and with what else the client gives
        to the template. `continue_final_message`: it ends with the last message's text, which is not closed.

        Raises BadChatError.
        """
        template = self.template if tools is None else self.tool_template
        if template is None:
            raise BadChatError("this model has no chat template: use /v1/completions")
        facts: dict[str, Any] = {**arguments, **self.template_names, **({} if tools is None else {"tools": tools})}
        if continue_final_message:
            add_generation_prompt = False
            last = {**messages[-1], "content": f"{messages[-1]['content']}{END_MARK} "}
            messages = [*messages[:-1], last]
        try:
            text = template.render(messages=messages, add_generation_prompt=add_generation_prompt, **facts)
        except (jinja2.TemplateError, TypeError, ValueError, RecursionError) as exc:
            raise BadChatError(f"the model's chat template refuses these messages: {exc}") from exc
        return _up_to_mark(text) if continue_final_message else text


def _up_to_mark(text: str) -> str:
    """A rendered conversation up to the end of its last message, whose last spaces are kept if the template keeps them.

    Raises BadChatError.
    """
    before, mark, after = text.rpartition(END_MARK)
    if not mark:
        raise BadChatError("the chat template does not show the last message as it is, so it can't be continued")
    return before if after.startswith(" ") else before.rstrip()


def load_tokenizer(directory: Path) -> Tokenizer:
    """Reads the tokenizer of a model directory or a GGUF file. Raises BadTokenizerError."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # one text at a time: its threads would only stand by
    rust, settings, path, eos_token_ids = _read(directory)
    try:
        state = json.loads(rust.to_str())
    except Exception as exc:  # the library raises bare Exception
        raise BadTokenizerError(f"{path}: {exc}") from exc
    rust.no_truncation()
    rust.no_padding()
    added = rust.get_added_tokens_decoder()
    specials = {token_id: token.content for token_id, token in added.items() if token.special}
    names = {
        key: _content(value)
        for key, value in settings.items()
        if key.endswith("_token") and _content(value) is not None
    }
    token_bytes = _byte_table(rust, state, path)
    return Tokenizer(
        rust=rust,
        token_bytes=token_bytes,
        special_texts=specials,
        template=_chat_template(path, settings),
        tool_template=_chat_template(path, settings, "tool_use"),
        tool_format=detect_format(_template_source(path, settings, "tool_use")[0] or ""),
        template_names={key: text for key, text in names.items() if text is not None},
        eos_token_ids=eos_token_ids,
        longest_token_bytes=_longest_token_bytes(token_bytes, specials, state),
    )


def _read(source: Path) -> tuple[RustTokenizer, Mapping[str, Any], Path, tuple[int, ...]]:
    """The library's tokenizer, what `tokenizer_config.json` says, the file it came from, and what ends a text."""
    try:
        gguf = find_gguf(source)
    except BadGgufError as exc:
        raise BadTokenizerError(f"{source}: {exc}; give the one to serve itself") from exc
    if gguf is not None:
        try:
            metadata = read_gguf(gguf).metadata
            built = build_tokenizer(metadata)
        except (BadGgufError, OSError) as exc:
            raise BadTokenizerError(f"{gguf}: {exc}; copy or convert the file again, or serve another one") from exc
        return built.rust, built.settings, gguf, end_token_ids(metadata)
    path = source / "tokenizer.json"
    if not path.is_file():
        raise BadTokenizerError(f"{path}: missing; a model directory needs the fast tokenizer file")
    try:
        rust = RustTokenizer.from_file(str(path))
    except Exception as exc:  # the library raises bare Exception for a bad file
        raise BadTokenizerError(f"{path}: {exc}") from exc
    settings = _read_json(source / "tokenizer_config.json")
    return rust, settings, path, _eos_token_ids(source, rust, _content(settings.get("eos_token")))


def _longest_token_bytes(
    token_bytes: Sequence[bytes], specials: Mapping[int, str], state: Mapping[str, Any]
) -> int | None:
    """None where unknown characters, or what a normaliser takes away, may hide any length of text in one token."""
    has_all_bytes = bool(_decoder_kinds(state.get("decoder")) & {"ByteLevel", "ByteFallback"})
    normalizer = state.get("normalizer")
    if not has_all_bytes or _takes_text_away(normalizer):
        return None
    longest = max((len(text) for text in (*token_bytes, *(s.encode() for s in specials.values()))), default=0)
    return max(1, longest) * (1 if normalizer is None else 4)  # Unicode joins up to four characters in one


def _takes_text_away(normalizer: Any) -> bool:
    match normalizer:
        case None | {"type": "NFC" | "NFD" | "NFKC" | "NFKD" | "Prepend" | "Lowercase"}:
            return False
        case {"type": "Sequence", "normalizers": [*parts]}:
            return any(_takes_text_away(part) for part in parts)
        case {"type": "Replace", "pattern": {"String": str(old)}, "content": str(new)}:
            return len(new) < len(old)
        case _:
            return True


def _byte_table(rust: RustTokenizer, state: Mapping[str, Any], path: Path) -> tuple[bytes, ...]:
    kinds = _decoder_kinds(state.get("decoder"))
    added = rust.get_added_tokens_decoder()
    size = max(rust.get_vocab_size(with_added_tokens=True), max(added, default=-1) + 1)
    table = [b""] * size
    if "ByteLevel" in kinds:
        alphabet = _byte_level_alphabet()
        for text, token_id in rust.get_vocab(with_added_tokens=False).items():
            table[token_id] = _from_byte_level(text, alphabet)
    elif kinds & {"ByteFallback", "Metaspace"}:
        for text, token_id in rust.get_vocab(with_added_tokens=False).items():
            is_byte = len(text) == 6 and text.startswith("<0x") and text.endswith(">")
            table[token_id] = bytes([int(text[3:5], 16)]) if is_byte else text.replace("\u2581", " ").encode()
    else:
        found = ", ".join(sorted(kinds)) or "none"
        raise BadTokenizerError(f"{path}: decoder {found} is not supported; ByteLevel, ByteFallback and Metaspace are")
    for token_id, token in added.items():
        table[token_id] = b"" if token.special else token.content.encode()
    return tuple(table)


def _decoder_kinds(decoder: Any) -> set[str]:
    if not isinstance(decoder, dict):
        return set()
    kinds = {str(decoder.get("type"))}
    for part in decoder.get("decoders", ()):
        kinds |= _decoder_kinds(part)
    return kinds


def _byte_level_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-in of each byte: printable Latin-1 is itself, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    rest = [byte for byte in range(256) if byte not in alphabet.values()]
    alphabet.update({chr(0x100 + i): byte for i, byte in enumerate(rest)})
    return alphabet


def _from_byte_level(text: str, alphabet: Mapping[str, int]) -> bytes:
    try:
        return bytes(alphabet[char] for char in text)
    except KeyError:  # not made of stand-ins: a plain token that was added to the vocabulary itself
        return text.encode()


def _template_source(path: Path, settings: Mapping[str, Any], name: str) -> tuple[str | None, Path]:
    """The template for this purpose, or the one for all; and its file. `path`: the tokenizer's own file."""
    is_own = is_gguf(path)
    beside = path.parent / "chat_template.jinja"
    if not is_own and beside.is_file():
        return beside.read_text(encoding="utf-8"), beside
    source: Any = settings.get("chat_template")
    if isinstance(source, list):  # several named templates: "default" is for plain chat
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get(name) or named.get("default")
    return None if source is None else str(source), path if is_own else path.parent / "tokenizer_config.json"


def _chat_template(path: Path, settings: Mapping[str, Any], name: str = "default") -> jinja2.Template | None:
    source, where = _template_source(path, settings, name)
    if source is None:
        return None
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda pattern: datetime.now().astimezone().strftime(pattern)
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as exc:
        raise BadTokenizerError(f"{where}: chat template, line {exc.lineno}: {exc.message}") from exc


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes < > & for HTML, which would change the prompt.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _content(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _eos_token_ids(directory: Path, rust: RustTokenizer, eos_token: str | None) -> tuple[int, ...]:
    for name in ("generation_config.json", "config.json"):
        value = _read_json(directory / name).get("eos_token_id")
        if isinstance(value, int):
            return (value,)
        if isinstance(value, list) and value and all(isinstance(v, int) for v in value):
            return tuple(value)
    found = None if eos_token is None else rust.token_to_id(eos_token)
    return () if found is None else (found,)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise BadTokenizerError(f"{path}: {exc}") from exc
    if not isinstance(value, dict):
        raise BadTokenizerError(f"{path}: must hold a JSON object")
    return value
