"""What the API process must know of the model before the core has loaded it: vocabulary, length, revision.

With the fake runner a directory needs a tokenizer only; the vocabulary is then the tokenizer's and a length is given
or assumed.
"""

from __future__ import annotations

from dataclasses import dataclass

from engine.config import BadConfigError, NodeConfig
from engine.model_dir import open_model
from engine.tokenizer import Tokenizer

FAKE_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class ModelFacts:
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    revision: str | None


def read_model_facts(config: NodeConfig, tokenizer: Tokenizer) -> ModelFacts:
    """Checks the directory without reading weights. Raises BadModelError, BadConfigError."""
    if config.runner == "fake":
        length = config.max_model_len or FAKE_MAX_MODEL_LEN
        return ModelFacts(tokenizer.vocab_size, length, tokenizer.eos_token_ids, None)
    # Checksums take a while for a large model: the core does them while the API says "loading".
    model = open_model(config.model_dir, verify=False)
    longest = model.config.max_position_embeddings
    if config.max_model_len is not None and config.max_model_len > longest:
        raise BadConfigError(f"--max-model-len {config.max_model_len}: the model's positions end at {longest}")
    return ModelFacts(
        vocab_size=model.config.vocab_size,
        max_model_len=config.max_model_len or longest,
        eos_token_ids=tuple(dict.fromkeys((*model.config.eos_token_ids, *tokenizer.eos_token_ids))),
        revision=model.revision,
    )
