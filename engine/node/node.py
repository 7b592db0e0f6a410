"""One serving node: its parts, wired. Each part owns one thing; this module owns none and decides nothing.

All state lives on the event loop. What the core says comes in here and goes to whom it concerns; what clients and
operators want goes from the HTTP routes to the parts directly. Knows no HTTP.
"""

from __future__ import annotations

import time

from engine.config import NodeConfig
from engine.node.admission import Admission
from engine.node.core_link import CoreLink
from engine.node.drain import DrainControl
from engine.node.faults import FaultControl
from engine.node.golden_probe import GoldenProbe
from engine.node.grammar_trials import GrammarHelper, GrammarTrials
from engine.node.health_watch import HealthWatch
from engine.node.inflight import CORE_DEAD
from engine.node.limits import LimitsInForce, LiveLimits
from engine.node.metrics import NodeMetrics
from engine.node.queue_guard import QueueGuard
from engine.node.request_log import RequestLog, SpanWriter
from engine.node.request_registry import RequestRegistry
from engine.node.served_model import ModelFacts, ServedModel
from engine.node.sleep import Sleeper
from engine.protocol.core_config import CoreConfig
from engine.protocol.golden_prompt import GoldenAnswerFile
from engine.protocol.grammar_trial import GrammarHelperConfig
from engine.protocol.messages import CoreAwake, CoreIdle, CoreReady, StepReport
from engine.text.tokenizer import Tokenizer


class ServingNode:
    """The parts of one node, for as long as its process lives. Threading: event loop only."""

    def __init__(
        self,
        config: NodeConfig,
        core_config: CoreConfig,
        tokenizer: Tokenizer,
        facts: ModelFacts,
        metrics: NodeMetrics,
        spans: SpanWriter | None = None,
    ) -> None:
        self.config = config
        self.started_at = time.time()  # unix seconds
        self.metrics = metrics
        self.core = CoreLink(core_config, metrics, self)
        self.faults = FaultControl(self.core.send)
        self.limits = LimitsInForce(LiveLimits.of(config, core_config), self.core.set_limits)
        helper = GrammarHelper(
            GrammarHelperConfig(
                model_dir=str(config.model_dir),
                vocab_size=facts.vocab_size,
                eos_token_ids=facts.eos_token_ids,
                log_level=config.log_level,
            )
        )
        self.grammars = GrammarTrials(helper, on_trial=metrics.note_grammar_trial)
        self.model = ServedModel(
            config, tokenizer, facts, self.core, lambda: self.faults.now.slow_tokenizer, self.grammars
        )
        queue = QueueGuard()
        request_log = RequestLog(spans)
        self.drain = DrainControl(held=lambda: self.requests.held, hand_off=lambda: self.requests.hand_off())
        self.requests = RequestRegistry(
            send=self.core.send,
            metrics=metrics,
            request_log=request_log,
            on_ended=self.drain.note_ended,
            on_output=queue.note_finished,
            on_changed=queue.note_changed,
        )
        self.golden = GoldenProbe(
            vocab_size=facts.vocab_size,
            revision=facts.revision,
            send=self.core.send,
            file=None if config.golden_file is None else GoldenAnswerFile(config.golden_file),
            interval_s=config.golden_interval_s,
            quantization=config.quantization,
            on_result=metrics.note_golden,
        )
        self.health = HealthWatch(
            core=self.core,
            drain=self.drain,
            golden=self.golden,
            is_resting=lambda: not self.sleeper.takes_work,
            stuck_core_kill_after_s=config.stuck_core_kill_after_s,
        )
        self.sleeper = Sleeper(
            core=self.core, drain=self.drain, requests=self.requests, golden=self.golden, judge_health=self.health.judge
        )
        self.admission = Admission(
            model=self.model,
            core=self.core,
            requests=self.requests,
            drain=self.drain,
            queue=queue,
            limits=self.limits,
            judge_health=self.health.judge,
            metrics=metrics,
            request_log=request_log,
        )

    # What the core says

    def on_ready(self, message: CoreReady) -> None:
        """The golden prompt was answered with it."""
        self.golden.on_ready(message, self.model.max_sequence_tokens)

    def on_awake(self, message: CoreAwake) -> None:
        """The golden prompt was answered again."""
        self.golden.on_awake(message.golden)

    def on_step(self, report: StepReport) -> None:
        """Each update goes to its choice, or to the golden probe."""
        if report.out_of_memory:
            self.faults.note_out_of_memory(report.out_of_memory)
        now = time.monotonic()
        for update in report.updates:
            if not self.requests.apply_update(update, now) and update.seq_id == self.golden.pending_id:
                self.golden.note_update(update)

    def on_idle(self, message: CoreIdle) -> None:
        """What the core should hold and does not is lost."""
        self.requests.fail_lost(message.at)

    def on_core_lost(self, reason: str) -> None:
        """Everything in flight fails; faults of the core died with it."""
        self.faults.note_core_lost()
        self.golden.on_core_lost()
        self.requests.fail_all(f"the engine core died: {reason}", CORE_DEAD)

    # What a scraper and a person see of it as a whole

    def counts(self) -> tuple[int, int]:
        """(running, waiting) sequences."""
        return self.requests.counts(self.core.running)

    def exposition(self) -> bytes:
        """The Prometheus text of now, as the faults would have it."""
        running, waiting = self.counts()
        self.metrics.note_state(
            readiness=self.health.judge(),
            held=list(self.requests.held),
            running=running,
            waiting=waiting,
            kv_ratio=self.core.kv_ratio,
            drain=self.drain.state,
            sleep_level=self.sleeper.level,
            limits=self.limits.now,
            now=time.monotonic(),
        )
        return self.faults.spoil_metrics(self.metrics.exposition())
