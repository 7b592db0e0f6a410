"""One run: which engine is measured when. One is alive at a time; each gets the same requests in the same order."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from engine.bench.figures import Figures
from engine.bench.http_load import IncompleteAnswerError, run_http_load
from engine.bench.report import ReportRow
from engine.bench.roofline import MachineRates, measure_machine, roofline_tokens_per_s
from engine.bench.servers import MODEL_NAME, Server, ServerError, llama_server, our_node, running, vllm_server
from engine.bench.transformers_peer import METHODS, PeerError, missing, run_transformers
from engine.bench.workload import BenchRequest, make_workload
from engine.model.directory import open_model

OURS = "fleetctl"
PEERS = ("vllm", "llama.cpp", "transformers")
LABELS = {"vllm": "vLLM"}
BLOCKS_OF = {"int8": "Q8_0", "int4": "Q4_0"}  # llama.cpp's, beside ours with `--quantization`


@dataclass(frozen=True, slots=True)
class ComparisonPlan:
    """What is measured: every dtype at every concurrency for us and each peer."""

    model: Path
    requests: tuple[BenchRequest, ...]
    concurrencies: tuple[int, ...]
    dtypes: tuple[str, ...]
    peers: tuple[str, ...]
    quantizations: tuple[str, ...]  # our node once more with each
    num_threads: int
    limit_s: float  # after which an engine is sent no further request at one concurrency


@dataclass(slots=True)
class Comparison:
    """Owns what has been found so far, which stays readable when the run is broken off."""

    plan: ComparisonPlan
    report_progress: Callable[[str], None]
    rows: list[ReportRow] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    machines: dict[str, MachineRates] = field(default_factory=dict)
    unusable: dict[tuple[str, str], str] = field(default_factory=dict)  # by engine and dtype: did not start

    def measure_rows(self) -> Iterator[ReportRow]:
        """Measures; gives each row when it is there. A peer that fails is a row that says why."""
        entrants = self.entrants()
        total = len(self.plan.dtypes) * len(self.plan.concurrencies) * len(entrants)
        for dtype in self.plan.dtypes:
            self.report_progress(f"{dtype}: measuring what memory and matrix products of this machine give")
            self.machines[dtype] = measure_machine(dtype, self.plan.num_threads)
            # One concurrency after the other, so that engines are measured side by side on a machine with neighbours.
            for concurrency in self.plan.concurrencies:
                for name in entrants:
                    where = f"{len(self.rows) + 1}/{total} {dtype} x{concurrency} {name}"
                    row = self._measure(name, dtype, concurrency, where)
                    self.rows.append(row)
                    self.report_progress(f"{where}: {_outcome(row.figures)}")
                    yield row

    def roofline_tokens_per_s(
        self, dtype: str, concurrency: int, requests: Sequence[BenchRequest] | None = None
    ) -> float:
        """Of `requests`, or of all, at this machine's roofline. `dtype` must have been measured before."""
        config = open_model(self.plan.model).config
        asked = self.plan.requests if requests is None else requests
        return roofline_tokens_per_s(config, dtype, asked, concurrency, self.machines[dtype])

    def entrants(self) -> list[str]:
        """Our node in each way, and peers that are installed; notes why others are left out."""
        return [OURS, *(f"{OURS} {kind}" for kind in self.plan.quantizations), *self._peers()]

    def _peers(self) -> Iterator[str]:
        for name in self.plan.peers:
            if name == "transformers":
                if (why := missing()) is None:
                    yield from (f"transformers {method}" for method in METHODS)
                    continue
            else:
                server = self._server(name, self.plan.dtypes[0])
                if not isinstance(server, str):
                    yield name
                    if name == "llama.cpp":
                        yield from (
                            f"{name} {BLOCKS_OF[kind]}" for kind in self.plan.quantizations if kind in BLOCKS_OF
                        )
                    continue
                why = server
            self.left_out.append(why)
            self.report_progress(f"left out: {why}")

    def _server(self, name: str, dtype: str) -> Server | str:
        model, threads = self.plan.model, self.plan.num_threads
        if name.startswith(OURS):
            kind = name.removeprefix(OURS).split()
            options = ["--max-num-seqs", str(max(*self.plan.concurrencies, 32))]
            if kind:
                options += ["--quantization", *kind]
            return our_node(model, dtype, threads, version("llm-fleetctl"), options)
        if name == "vllm":
            return vllm_server(model, dtype, threads)
        return llama_server(model, name.partition(" ")[2] or dtype, threads)

    def _measure(self, name: str, dtype: str, concurrency: int, where: str) -> ReportRow:
        figures: Figures | str
        if name.startswith("transformers "):
            release = version("transformers")
            self.report_progress(f"{where}: at most {self.plan.limit_s:g} s in a process of its own")
            try:
                figures = self._transformers(name.removeprefix("transformers "), dtype, concurrency)
            except (PeerError, ValueError) as error:
                figures = str(error)
        else:
            server = self._server(name, dtype)
            release = "" if isinstance(server, str) else server.version
            try:
                figures = server if isinstance(server, str) else self._over_http(server, dtype, concurrency, where)
            except (IncompleteAnswerError, ServerError) as error:
                if name.startswith(OURS):
                    raise
                figures = str(error).splitlines()[0][:300]
        roofline = None
        if not isinstance(figures, str) and " " not in name.removeprefix(
            "transformers "
        ):  # that would be one of other bytes
            answered = self.plan.requests[: figures.num_requests] or self.plan.requests
            roofline = self.roofline_tokens_per_s(dtype, concurrency, answered)
        return ReportRow(LABELS.get(name, name), release, dtype, concurrency, figures, roofline)

    def _over_http(self, server: Server, dtype: str, concurrency: int, where: str) -> Figures | str:
        if (why := self.unusable.get((server.name, dtype))) is not None:
            return why
        self.report_progress(f"{where}: starting")
        asked_at = time.monotonic()
        # A fresh process each: what one run leaves in a prefix cache must not help the next.
        try:
            with running(server) as url:
                self.report_progress(f"{where}: ready after {time.monotonic() - asked_at:.0f} s, first requests")
                # First-request costs; other words than the measured prompts', so that no cache knows those.
                asyncio.run(run_http_load(url, MODEL_NAME, make_workload(2, max_output_tokens=8, seed=1), 2))
                count = len(self.plan.requests)
                self.report_progress(f"{where}: measuring {count} requests, none sent after {self.plan.limit_s:g} s")
                return asyncio.run(run_http_load(url, MODEL_NAME, self.plan.requests, concurrency, self.plan.limit_s))
        except ServerError as error:
            self.unusable[server.name, dtype] = str(error).splitlines()[0][:300]
            raise

    def _transformers(self, method: str, dtype: str, concurrency: int) -> Figures:
        plan = self.plan
        return run_transformers(plan.model, dtype, method, plan.requests, concurrency, plan.num_threads, plan.limit_s)


def _outcome(figures: Figures | str) -> str:
    if isinstance(figures, str):
        return f"not measured: {figures}"
    return f"{figures.output_tokens_per_s:.1f} tokens/s, {figures.num_requests} requests answered"
