"""Random sequences of add, step, abort and failure in pools that are always too small, against a plain model.

What must hold whatever happens: the books of blocks agree after every operation, no KV slot is read that does not hold
its sequence's prefix (the runner checks), every request ends exactly once, and its tokens are those that undisturbed
generation gives: none lost, none twice.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.core.fake_runner import generate
from engine.core.scheduler_config import SchedulerConfig
from engine.core.speculation_config import SpeculationConfig
from engine.protocol.failure import FailureKind, SequenceFailure
from engine.protocol.messages import AddSequence
from engine.protocol.step import SamplingParams
from tests.fixtures.core import Bench, make_config

VOCAB_SIZE = 3  # so few that prefixes, stops and wholly cached prompts are common
EOS = 2
MAX_STEPS_TO_END = 3000
FATES = [*[None] * 8, FailureKind.STEP_FAILED, FailureKind.OUT_OF_MEMORY]  # of a step


SPECULATIONS = [
    SpeculationConfig(num_speculative_tokens=count, prompt_lookup_min=1, prompt_lookup_max=longest, is_adaptive=adapts)
    for count, longest, adapts in ((1, 1, False), (3, 2, False), (7, 4, False), (4, 3, True))
] + [
    SpeculationConfig("draft", num_speculative_tokens=count, is_adaptive=adapts)
    for count, adapts in ((3, False), (6, True))
]


@st.composite
def configs(draw: st.DrawFn) -> SchedulerConfig:
    block_size = draw(st.sampled_from([1, 2, 4]))
    num_blocks = draw(st.integers(2, 14))
    max_model_len = draw(st.integers(2, 30))
    max_num_seqs = draw(st.integers(1, 5))
    chunked = draw(st.sampled_from([True, True, False]))
    budget = draw(st.integers(max_num_seqs, 12))
    if not chunked:
        budget = min(max_model_len, num_blocks * block_size) + max_num_seqs
    return make_config(
        block_size=block_size,
        num_blocks=num_blocks,
        max_model_len=max_model_len,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=budget,
        chunked_prefill=chunked,
        prefill_chunk_tokens=draw(st.sampled_from([None, 1, 3])),
        prefix_caching=draw(st.sampled_from([True, True, False])),
        num_host_blocks=draw(st.sampled_from([0, 3, 20])),
        vocab_size=VOCAB_SIZE,
        eos_token_ids=draw(st.sampled_from([(), (EOS,)])),
        ageing_s=5.0,
        speculation=draw(st.sampled_from([None, *SPECULATIONS])),
        window_tokens=draw(st.sampled_from([None, None, 1, 2, 5, 9])),
    )


samplings = st.builds(
    SamplingParams,
    max_tokens=st.integers(1, 12),
    seed=st.integers(0, 3),
    min_tokens=st.integers(0, 3),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (), (1,)]),
)
# a run of zeros first: prompts share beginnings of every length
prompts = st.builds(
    lambda zeros, rest: (0,) * zeros + tuple(rest), st.integers(0, 8), st.lists(st.integers(0, 2), max_size=5)
)


def expected_tokens(message: AddSequence, config: SchedulerConfig) -> list[int]:
    """What the request must get, worked out without scheduler, blocks or batches."""
    sampling = message.sampling
    future = generate(message.prompt_token_ids, sampling, VOCAB_SIZE, message.output_token_ids, count=config.max_tokens)
    stops = set(sampling.stop_token_ids) | (set() if sampling.ignore_eos else set(config.eos_token_ids))
    output = list(message.output_token_ids)
    limit = min(sampling.max_tokens, config.max_tokens - len(message.prompt_token_ids))
    while len(output) < limit:
        if output and len(output) >= sampling.min_tokens and output[-1] in stops:
            break
        output.append(future[len(output) - len(message.output_token_ids)])
    return output[len(message.output_token_ids) :]


class SchedulerMachine(RuleBasedStateMachine):
    @initialize(config=configs())
    def start(self, config: SchedulerConfig) -> None:
        self.bench = Bench(config, vocab_size=VOCAB_SIZE)
        self.messages: dict[str, AddSequence] = {}
        self.num_added = 0

    @rule(
        prompt=prompts,
        sampling=samplings,
        priority=st.integers(0, 2),
        output=st.lists(st.integers(0, 1), max_size=3),
        salt=st.sampled_from(["", "", "tenant"]),
    )
    def add(
        self, prompt: tuple[int, ...], sampling: SamplingParams, priority: int, output: list[int], salt: str
    ) -> None:
        self.num_added += 1
        message = AddSequence(f"r{self.num_added}", prompt, sampling, self.bench.now, priority, tuple(output), salt)
        refused = self.bench.add(message)
        limit = self.bench.config.max_tokens
        fits = 0 < len(prompt) < limit and len(prompt) + len(output) <= limit
        assert (refused is None) == fits
        if fits:
            self.messages[message.seq_id] = message

    @precondition(lambda self: self.bench.scheduler.has_work)
    @rule(seconds=st.floats(0.0, 3.0), fate=st.sampled_from(FATES), data=st.data())
    def step(self, seconds: float, fate: FailureKind | None, data: st.DataObject) -> None:
        bench = self.bench
        bench.now += seconds
        plan = bench.plan()
        assert 0 < plan.num_tokens <= bench.config.max_num_batched_tokens
        assert len(plan.scheduled) <= bench.config.max_num_seqs
        if data.draw(st.sampled_from([False] * 5 + [True]), label="abort during the step"):
            bench.abort(data.draw(st.sampled_from(list(bench.scheduler.sequences))))
            bench.check()
        if fate is None:
            bench.finish_step(plan)
            return
        if data.draw(st.booleans(), label="the runner got through"):
            bench.runner.run_step(plan)
        bench.take_outcome(bench.scheduler.fail(SequenceFailure(fate, "drawn"), bench.now))

    @precondition(lambda self: self.bench.scheduler.has_work)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.bench.abort(data.draw(st.sampled_from(list(self.bench.scheduler.sequences))))

    @invariant()
    def is_sound(self) -> None:
        if not hasattr(self, "bench"):
            return
        self.bench.check()
        alive = set(self.bench.scheduler.sequences)
        assert alive == self.messages.keys() - self.bench.ends.keys()

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        bench = self.bench
        bench.run(MAX_STEPS_TO_END)
        assert bench.ends.keys() == self.messages.keys()
        assert bench.scheduler.pool.num_used == 0
        assert bench.scheduler.host_blocks.num_free == bench.config.num_host_blocks
        for seq_id, message in self.messages.items():
            expected, got = expected_tokens(message, bench.config), bench.tokens[seq_id]
            if bench.ends[seq_id].finish_reason in ("stop", "length"):
                assert got == expected, seq_id
            else:
                assert got == expected[: len(got)], seq_id


TestSchedulerMachine = SchedulerMachine.TestCase
TestSchedulerMachine.settings = settings(
    max_examples=120,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)


@pytest.mark.parametrize("num_host_blocks", [0, 30])
def test_tokens_do_not_depend_on_what_else_runs(num_host_blocks: int) -> None:
    """The same requests alone and in a crowd that is preempted, chunked, swapped and cached all the time."""
    bench = Bench(make_config(num_blocks=14, max_model_len=48, num_host_blocks=num_host_blocks), vocab_size=VOCAB_SIZE)
    messages = [
        AddSequence(f"r{i}", (0,) * (i % 7) + (1, 2, i % 3), SamplingParams(max_tokens=25, seed=i % 4), 0.0)
        for i in range(40)
    ]
    bench.add(*messages)
    bench.run()
    assert bench.preemptions, "the crowd was not crowded"
    for message in messages:
        assert bench.tokens[message.seq_id] == expected_tokens(message, bench.config)
