"""A fresh sequence of a request, with all that turns its tokens into what its client reads."""

from __future__ import annotations

from engine.node.inflight import Ask, Choice
from engine.protocol.request_id import make_seq_id
from engine.text.detokenizer import TextStream
from engine.text.tokenizer import Tokenizer
from engine.text.tool_formats import FORMATS
from engine.text.tool_stream import ToolStream


def make_choice(ask: Ask, index: int, admission: str, tokenizer: Tokenizer) -> Choice:
    """Choice `index` of an ask; `admission` as in `make_seq_id`."""
    sampling = ask.sampling_of(index)
    fmt = ask.tool_format
    bytes_of = tokenizer.bytes_showing(() if fmt is None else FORMATS[fmt].specials)
    text = TextStream(bytes_of, stop=ask.stop, include_stop=ask.include_stop, min_tokens=sampling.min_tokens)
    return Choice(
        index=index,
        seq_id=make_seq_id(ask.request_id, admission, index),
        prompt=ask.prompts[index // ask.n],
        sampling=sampling,
        text=text,
        tools=None if fmt is None else ToolStream(fmt, max_calls=ask.max_tool_calls),
        include_stop=ask.include_stop,
        keeps_text=not ask.stream,
    )
