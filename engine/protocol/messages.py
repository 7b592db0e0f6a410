"""Messages between a node's API process and its engine core: typed, plain, encoded as MessagePack frames.

Each frame is a 4-byte big-endian length and one encoded message. Times are `time.monotonic()` seconds, which on
Linux is one clock for all processes of a machine.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from engine.protocol.failure import SequenceFailure
from engine.protocol.step import SamplingParams, TokenLogprobs


class FinishReason(StrEnum):
    """How a sequence ended."""

    STOP = "stop"  # end of sequence or a stop token; the token is part of the output
    LENGTH = "length"  # max_tokens or the model's length
    REPETITION = "repetition"  # the request's `repetition` found one
    ABORT = "abort"  # asked for
    ERROR = "error"  # `SequenceUpdate.failure` says why


class StepKind(StrEnum):
    """What a step computed; a label of the step metrics."""

    PREFILL = "prefill"  # prompts, and tokens that a preemption lost
    DECODE = "decode"  # one new position of each
    MIXED = "mixed"
    NONE = "none"  # no step, or one of probes only


class LoadPhase(StrEnum):
    """What a core does before it is ready."""

    LOADING = "loading"  # checksums, weights, their calibration, KV cache
    WARMING_UP = "warming_up"  # kernels, the golden prompt


class AddSequence(msgspec.Struct, frozen=True, tag="add"):
    """One choice of a request begins, or goes on after `output_token_ids`."""

    seq_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    arrived_at: float
    priority: int = 0  # smaller is served first
    output_token_ids: tuple[int, ...] = ()  # generated elsewhere before; sampling continues after them
    cache_salt: str = ""  # tenant or adapter: prefixes are shared only within one salt
    is_probe: bool = False  # the node's own: neither reads nor fills the prefix cache, and is in no count


class AbortSequence(msgspec.Struct, frozen=True, tag="abort"):
    """Ends a sequence; one that is not there any more is no error."""

    seq_id: str
    reason: str  # client_gone, moved, stop_string, deadline, admin


class SetFaults(msgspec.Struct, frozen=True, tag="set_faults"):
    """Faults for drills. The core ignores this message unless it was started with faults enabled."""

    slow_steps: float | None = None  # each step takes this many times as long
    hung_core: bool = False
    wrong_numbers: bool = False
    kv_leak_blocks: int = 0  # lost at each step
    oom_steps: int = 0  # of the next ones
    prefix_cache_off: bool = False
    slow_decode: float | None = None  # each step that computes no prompt takes this many times as long
    row_seconds: float = 0.0  # each step takes so much longer for each of its sequences
    failing_share: float = 0.0  # of new sequences: they end with an error of the server


class SetLimits(msgspec.Struct, frozen=True, tag="set_limits"):
    """New limits of the scheduler, for steps from now on. Running requests keep running."""

    max_num_seqs: int
    max_num_batched_tokens: int
    prefill_chunk_tokens: int | None


class ResetPrefixCache(msgspec.Struct, frozen=True, tag="reset_prefix_cache"):
    """Forget every prefix; running requests keep their blocks."""


class Sleep(msgspec.Struct, frozen=True, tag="sleep"):
    """Drop the KV cache and give back what memory you can, keeping the weights at hand."""


class WakeUp(msgspec.Struct, frozen=True, tag="wake_up"):
    """Take the memory again and answer the golden prompt."""


class Shutdown(msgspec.Struct, frozen=True, tag="shutdown"):
    """End every sequence, then the process."""

    pass


class ListBlocks(msgspec.Struct, frozen=True, tag="list_blocks"):
    """Asks what KV each sequence holds; the answer carries the same number."""

    number: int


class CountBlocks(msgspec.Struct, frozen=True, tag="count_blocks"):
    """Asks what the KV cache is used for; the answer carries the same number."""

    number: int


ToCore = (
    AddSequence
    | AbortSequence
    | SetFaults
    | SetLimits
    | ResetPrefixCache
    | Sleep
    | WakeUp
    | ListBlocks
    | CountBlocks
    | Shutdown
)


class GoldenAnswer(msgspec.Struct, frozen=True):
    """What the model answered to the golden prompt: greedy tokens, each with its two most likely candidates."""

    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]


class CoreReady(msgspec.Struct, frozen=True, tag="ready"):
    """Sent once, after loading and warm-up: the core can answer now."""

    num_kv_blocks: int
    block_size: int
    max_model_len: int
    device: str
    dtype: str
    load_seconds: float
    warmup_seconds: float
    golden: GoldenAnswer | None = None  # run to its last token before the core counts as ready
    num_host_blocks: int = 0  # for the KV of preempted sequences
    kv_cache_dtype: str = "auto"  # of keys and values: as `dtype`, or int8, fp8
    rounding: str | None = None  # hex digits of what calibration made of the weights; None: there was none
    kv_cache_bytes: int = 0  # of memory, once all of its blocks have been used; 0: a simulated device has none


class CoreProgress(msgspec.Struct, frozen=True, tag="progress"):
    """Loading and warm-up, so that "not ready" can say why and how far."""

    phase: LoadPhase
    done: float  # 0 to 1


class CoreFailed(msgspec.Struct, frozen=True, tag="failed"):
    """The core can't go on (bad model directory, no memory). It exits after sending this."""

    reason: str


class CoreAsleep(msgspec.Struct, frozen=True, tag="asleep"):
    """Answers `Sleep`. With `problem` nothing was done."""

    weights: str = "kept"  # kept where they are, or offloaded to host memory
    freed_kv_bytes: int = 0
    problem: str | None = None


class CoreAwake(msgspec.Struct, frozen=True, tag="awake"):
    """Answers `WakeUp`: requests can be served again. A core that can't take its memory again ends instead."""

    golden: GoldenAnswer


class BlocksHeld(msgspec.Struct, frozen=True, tag="blocks_held"):
    """Answers `ListBlocks`: device blocks by sequence id, shared ones counted for each sequence that holds them."""

    number: int
    blocks: dict[str, int]


class BlockUse(msgspec.Struct, frozen=True, tag="block_use"):
    """Answers `CountBlocks`: device blocks by what they are used for. What is neither held nor kept is blank."""

    number: int
    block_size: int
    num_blocks: int
    num_held: int  # by a request at least
    num_shared: int  # of those: by several
    num_kept: int  # by none, and kept for prompts that begin the same
    num_kept_reused: int  # of those: found again since, and evicted last


class SequenceUpdate(msgspec.Struct, frozen=True):
    """News of one sequence from one step. `finish_reason` set means terminal: no update follows."""

    seq_id: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    failure: SequenceFailure | None = None  # exactly with ERROR
    scheduled_at: float | None = None  # set once, with the first update after it was first scheduled
    num_cached_tokens: int | None = None  # set once: prompt tokens found in the prefix cache
    preempted: int = 0  # times preempted since the last update
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()  # of the prompt's next tokens, from its second on
    pooled: bytes = b""  # with the end of a sequence that has `pooling`: its vector, float32


class StepReport(msgspec.Struct, frozen=True, tag="step"):
    """One step of the core, and the state of its queues after it."""

    step_id: int
    kind: StepKind  # NONE: no step, only news of sequences (refused, aborted)
    finished_at: float
    seconds: float
    num_tokens: int  # of requests, not of probes: 0 for a step that computed nothing else
    num_seqs: int
    updates: tuple[SequenceUpdate, ...]
    running: int
    waiting: int
    kv_blocks_used: int  # held by running sequences; blocks kept only for reuse count as free
    kv_blocks_total: int
    host_blocks_used: int = 0  # by preempted sequences
    # Counts of this step alone:
    preemptions: int = 0
    preempted_tokens: int = 0  # computed before, to be computed again
    swapped_out_blocks: int = 0  # to host memory
    swapped_in_blocks: int = 0
    prefix_queries_tokens: int = 0
    prefix_hits_tokens: int = 0
    failed_steps: int = 0  # 1 if this step could not be computed
    out_of_memory: int = 0  # 1 if memory ran out: for the step, or for a request of it
    num_drafts: int = 0  # sequences that tokens were proposed for
    num_draft_tokens: int = 0  # proposed
    accepted_per_position: tuple[int, ...] = ()  # proposals that were right, by their place in a draft
    slowness_ratio: float | None = None  # seconds over what such a step took before; None: no such step was measured


class CoreIdle(msgspec.Struct, frozen=True, tag="idle"):
    """Sent about once a second while nothing runs: alive, queues empty, blocks checked."""

    at: float
    kv_blocks_used: int
    kv_blocks_total: int
    integrity_error: str | None = None


FromCore = (
    CoreReady | CoreProgress | CoreFailed | StepReport | CoreIdle | CoreAsleep | CoreAwake | BlocksHeld | BlockUse
)
