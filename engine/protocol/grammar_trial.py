"""What the API process asks its grammar helper, and what that answers: does this grammar compile within its limits?"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class TrialResult(StrEnum):
    """How one trial ended; a label of `engine_grammar_trials_total`."""

    COMPILED = "compiled"
    REFUSED = "refused"  # the compiler says what is wrong with it
    CRASHED = "crashed"  # the compiler died of it: out of stack, out of memory, a defect
    CPU_LIMIT = "cpu_limit"
    TIME_LIMIT = "time_limit"


class GrammarHelperConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Travels as JSON on the helper's command line. The limits are those of one trial."""

    model_dir: str
    vocab_size: int
    eos_token_ids: tuple[int, ...]
    log_level: str = "INFO"
    max_memory_bytes: int = 512 * 2**20  # beside what the helper has mapped before the trial
    max_stack_bytes: int = 4 * 2**20  # a sixteenth of what the core compiles and follows grammars with
    max_cpu_s: int = 3  # work limits end nearly all grammars within 0.7 s
    max_wall_s: float = 30.0


class TrialEnded(msgspec.Struct, frozen=True):
    """`reason` is for the client: what is wrong, without quoting more of a grammar than the compiler does."""

    result: TrialResult
    grammar: str | None = None  # with COMPILED: what was built of the source
    reason: str = ""
    seconds: float = 0.0
