"""The model as the API process knows it: names, vocabulary, lengths, tokenizer and grammars.

The facts are read before the core has loaded anything; how long a sequence may be is known when its KV cache is.

With the fake runner a directory needs a tokenizer only; the vocabulary is then the tokenizer's and a length is given
or assumed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from engine.config import BadConfigError, NodeConfig
from engine.model.directory import ModelDir, open_model
from engine.model.drafter_directory import most_proposed, open_drafter
from engine.model.pooling import Pooling, read_pooling
from engine.node.core_link import CoreLink
from engine.node.generation_config import SamplingDefaults, read_sampling_defaults
from engine.node.grammar_trials import GrammarTrials
from engine.text.tokenizer import Tokenizer

FAKE_MAX_MODEL_LEN = 8192
FAKE_VECTOR_SIZE = 32
INLINE_CHARS = 4096  # tokenising more than this takes longer than a step: it goes to a thread
LARGE_CHARS = 256 * 2**10  # more than this takes tenths of a second: few at a time, so that others find a thread
LARGE_TEXTS_AT_ONCE = 2

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What its directory and tokenizer say. `max_model_len` in tokens."""

    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    revision: str | None
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)
    pooling: Pooling | None = None  # None: it generates
    num_speculative_tokens: int = 0  # in one step; what proposes them may have fewer heads than were asked for


def read_model_facts(config: NodeConfig, tokenizer: Tokenizer) -> ModelFacts:
    """Checks the directory without reading weights. Raises BadModelError, BadConfigError."""
    if config.runner == "fake":
        length = config.max_model_len or FAKE_MAX_MODEL_LEN
        pooling = None
        if config.task not in (None, "generate"):
            pooling = Pooling("embed", config.pooling_type or "last", dimensions=None, size=FAKE_VECTOR_SIZE)
        return ModelFacts(
            tokenizer.vocab_size,
            length,
            _ends(config, tokenizer, ()),
            None,
            _sampling(config),
            pooling,
            config.num_speculative_tokens,
        )
    # Checksums take a while for a large model: the core does them while the API says "loading".
    model = open_model(config.model_dir, verify=False)
    longest = model.config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise BadConfigError(f"--max-model-len {config.max_model_len}: the model's positions end at {longest}")
    return ModelFacts(
        vocab_size=model.config.vocab_size,
        max_model_len=config.max_model_len or longest,
        eos_token_ids=_ends(config, tokenizer, model.config.eos_token_ids),
        revision=model.revision,
        sampling=_sampling(config),
        pooling=read_pooling(model.path, model.config, task=config.task, kind=config.pooling_type),
        num_speculative_tokens=_most_ahead(config, model),
    )


def _most_ahead(config: NodeConfig, model: ModelDir) -> int:
    if config.speculation in ("off", "ngram") or config.draft_model_dir is None:
        return config.num_speculative_tokens
    drafter = open_drafter(config.speculation, config.draft_model_dir, model, verify=False)
    return most_proposed(drafter, config.num_speculative_tokens)


def _sampling(config: NodeConfig) -> SamplingDefaults:
    return read_sampling_defaults(config.model_dir) if config.generation_config == "auto" else SamplingDefaults()


def _ends(config: NodeConfig, tokenizer: Tokenizer, of_model: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that end a text: the model's, and the tokenizer's, which knows generation_config.json."""
    if config.generation_config == "auto":
        return tuple(dict.fromkeys((*of_model, *tokenizer.eos_token_ids)))
    name = tokenizer.template_names.get("eos_token")
    own = None if name is None else tokenizer.rust.token_to_id(name)
    return of_model if own is None else tuple(dict.fromkeys((*of_model, own)))


class ServedModel:
    """All that turning a client's words into tokens, and tokens into words, needs. Threading: event loop only."""

    def __init__(
        self,
        config: NodeConfig,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        core: CoreLink,
        slow_tokenizer_s: Callable[[], float | None],
        grammars: GrammarTrials,
    ) -> None:
        """`slow_tokenizer_s`: seconds that a fault makes each text take longer, None without one."""
        self.names = config.served_model_names
        self.max_output_tokens = config.max_output_tokens  # None: as many as fit
        self.tokenizer = tokenizer
        self.facts = facts
        self.pooling = facts.pooling
        self.grammars = grammars
        self.tool_format = config.tool_call_parser or tokenizer.tool_format
        self._core = core
        self._slow_tokenizer_s = slow_tokenizer_s
        self._large_texts = asyncio.Semaphore(LARGE_TEXTS_AT_ONCE)  # held while one is tokenised

    @property
    def max_sequence_tokens(self) -> int:
        """Longest sequence served: the context, or all of the KV cache when that is less."""
        capacity, ready = self._core.kv_capacity_tokens, self._core.ready
        if capacity is None or ready is None:
            return self.facts.max_model_len
        return min(ready.max_model_len, capacity)

    async def beside_loop(self, size_chars: int, work: Callable[[], T]) -> T:
        """What `work` returns for a text of this size: short ones inline, long ones in a thread, few huge ones."""
        delay_s = self._slow_tokenizer_s()
        if delay_s is not None:
            await asyncio.to_thread(time.sleep, delay_s)  # in the threads that tokenising shares: they run short too
        if size_chars <= INLINE_CHARS:
            return work()
        if size_chars <= LARGE_CHARS:
            return await asyncio.to_thread(work)
        async with self._large_texts:
            return await asyncio.to_thread(work)
