"""What the API process must know of the model before the core has loaded it: vocabulary, length, revision.

With the fake runner a directory needs a tokenizer only; the vocabulary is then the tokenizer's and a length is given
or assumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.config import BadConfigError, NodeConfig
from engine.model.directory import open_model
from engine.node.generation_config import SamplingDefaults, read_sampling_defaults
from engine.text.tokenizer import Tokenizer

FAKE_MAX_MODEL_LEN = 8192


@dataclass(frozen=True, slots=True)
class ModelFacts:
    vocab_size: int
    max_model_len: int
    eos_token_ids: tuple[int, ...]
    revision: str | None
    sampling: SamplingDefaults = field(default_factory=SamplingDefaults)


def read_model_facts(config: NodeConfig, tokenizer: Tokenizer) -> ModelFacts:
    """Checks the directory without reading weights. Raises BadModelError, BadConfigError."""
    if config.runner == "fake":
        length = config.max_model_len or FAKE_MAX_MODEL_LEN
        return ModelFacts(tokenizer.vocab_size, length, _ends(config, tokenizer, ()), None, _sampling(config))
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
    )


def _sampling(config: NodeConfig) -> SamplingDefaults:
    return read_sampling_defaults(config.model_dir) if config.generation_config == "auto" else SamplingDefaults()


def _ends(config: NodeConfig, tokenizer: Tokenizer, of_model: tuple[int, ...]) -> tuple[int, ...]:
    """Tokens that end a text: the model's, and the tokenizer's, which knows generation_config.json."""
    if config.generation_config == "auto":
        return tuple(dict.fromkeys((*of_model, *tokenizer.eos_token_ids)))
    name = tokenizer.template_names.get("eos_token")
    own = None if name is None else tokenizer.rust.token_to_id(name)
    return of_model if own is None else tuple(dict.fromkeys((*of_model, own)))
