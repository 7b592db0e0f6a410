"""What a person at a terminal sees of a start: a bar while the model loads, then what the node holds and its limits."""

from __future__ import annotations

import asyncio
import sys

from engine.config import NodeConfig
from engine.node.core_link import CoreLink
from engine.protocol.messages import CoreReady

REFRESH_S = 0.1
PHASES = {"loading": "loading", "warming_up": "warming up"}


async def show_loading(core: CoreLink) -> None:
    """Draws a progress bar on stderr until the core is ready for the first time."""
    from rich.console import Console  # for people only: a node without a terminal need not load it
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(file=sys.stderr)
    columns = (TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.percentage:>3.0f}%"))
    # The log goes through sys.stderr, which the bar takes over: lines come out above it.
    with Progress(*columns, TimeElapsedColumn(), console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("starting", total=1.0)
        while not core.first_ready.is_set():
            if (progress := core.progress) is not None:
                bar.update(task, description=PHASES.get(progress.phase, progress.phase), completed=progress.done)
            bar.refresh()
            await asyncio.sleep(REFRESH_S)


def what_limits(config: NodeConfig, ready: CoreReady) -> str:
    """Which setting, or what of this machine, ends how much can be served at once."""
    capacity = ready.num_kv_blocks * ready.block_size
    blocks_of_longest = -(-ready.max_model_len // ready.block_size)
    if config.num_kv_blocks is not None:
        told = "--num-kv-blocks"
    elif config.kv_cache_memory_bytes is not None:
        told = "--kv-cache-memory"
    elif config.memory_utilization is not None and config.runner != "fake":
        told = f"--gpu-memory-utilization {config.memory_utilization:g}"
    else:
        told = "the simulated device's memory" if config.runner == "fake" else f"free memory for {ready.device}"
    if capacity < ready.max_model_len:
        return f"{told}: the longest sequence is {capacity:,} tokens"
    if ready.num_kv_blocks >= config.max_num_seqs * blocks_of_longest:
        return f"--max-num-seqs {config.max_num_seqs}: KV cache for all of them at full length"
    return f"{told}: {capacity // ready.max_model_len} of {config.max_num_seqs} requests can have full length"


def is_told(config: NodeConfig) -> bool:
    """Whether the size of the KV cache was, in blocks, in bytes or as a share."""
    told = (config.num_kv_blocks, config.kv_cache_memory_bytes, config.memory_utilization)
    return any(one is not None for one in told)


def start_lines(config: NodeConfig, ready: CoreReady, url: str) -> str:
    """For a terminal, within 80 columns for names of usual length."""
    capacity = ready.num_kv_blocks * ready.block_size
    facts = {
        "model": f"{config.model_name}, {ready.dtype} on {ready.device}",
        "KV cache": f"{capacity:,} tokens in blocks of {ready.block_size}",
        "at once": f"{capacity / ready.max_model_len:.1f} requests of {ready.max_model_len:,} tokens",
        "limited by": what_limits(config, ready),
    }
    if ready.kv_cache_bytes:
        share = ", of an eighth of free memory" if ready.device == "cpu" and not is_told(config) else ""
        facts["memory"] = f"{ready.kv_cache_bytes / 2**20:,.0f} MiB for KV, as it is used{share}"
    if config.speculation != "off":
        how = "as much as pays" if config.adaptive_speculation else "always"
        facts["tokens ahead"] = f"{config.speculation}, up to {config.num_speculative_tokens}, {how}"
    width = max(map(len, facts))
    return f"ready at {url}\n" + "".join(f"  {name:<{width}}  {value}\n" for name, value in facts.items())
