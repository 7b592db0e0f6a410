"""What the KV cache takes: by default, as told, and before anybody used it."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import psutil
import pytest
import torch

from engine.config import BadConfigError, NodeConfig, add_serve_arguments, config_from_args
from engine.core import runner_loader
from engine.core.runner_loader import DeviceMemory, NoKvMemoryError, load_runner, share_for_kv
from engine.model.config import parse_config
from engine.model.directory import open_model, step_bytes, weight_bytes
from engine.model.kv_memory import empty_kv
from engine.protocol.core_config import CoreConfig
from tests.fixtures.engine import start_node, tiny_model_dir, wait_for

CPU = torch.device("cpu")
MIB = 2**20


def _config(*options: str) -> NodeConfig:
    parser = argparse.ArgumentParser(exit_on_error=False)
    add_serve_arguments(parser)
    return config_from_args(parser.parse_args(["--model", str(tiny_model_dir()), *options]))


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("4096", 4096),
        ("512MiB", 512 * MIB),
        ("1.5GiB", 1536 * MIB),
        ("2g", 2048 * MIB),
        ("300MB", 300 * 10**6),
        ("1 TiB", MIB * MIB),
    ],
)
def test_sizes_are_bytes_or_have_a_unit(text: str, num_bytes: int) -> None:
    assert _config("--kv-cache-memory", text).kv_cache_memory_bytes == num_bytes
    assert _config("--kv-cache-memory-bytes", text).kv_cache_memory_bytes == num_bytes, "vLLM's name of it"


@pytest.mark.parametrize("text", ["0", "-1", "much", "1.2.3GiB", "2 PiB", ""])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises((argparse.ArgumentError, BadConfigError, SystemExit)):
        _config(f"--kv-cache-memory={text}")


def test_what_nobody_wrote_to_takes_no_memory_and_reads_as_zeros() -> None:
    process = psutil.Process()
    before = process.memory_info().rss
    kv = empty_kv((4, 2, 512, 16, 8, 64), torch.float32, CPU)  # 128 MiB
    assert process.memory_info().rss - before < kv.nbytes // 8
    assert not kv[3, 1, 511].any()
    kv[:, :, 7] = 1.0
    assert kv[0, 0, 7].all()
    assert not kv[0, 0, 8].any()


def test_memory_that_can_not_be_had_is_said_at_once() -> None:
    with pytest.raises(MemoryError, match="bytes for KV blocks"):
        empty_kv((2**50,), torch.float32, CPU)


def test_an_eighth_of_free_memory_is_for_kv_and_no_more_than_a_container_has(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemAvailable: {64 * 1024} kB\n")
    monkeypatch.setattr(runner_loader, "_MEMINFO", meminfo)
    monkeypatch.setattr(runner_loader, "_CGROUP", tmp_path)
    config = CoreConfig(model_dir=str(tiny_model_dir()), num_threads=1, max_num_seqs=512)
    free = load_runner(config, lambda phase, done: None)
    assert 7 * MIB < free.kv_bytes <= 8 * MIB
    (tmp_path / "memory.max").write_text(f"{40 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{8 * MIB}\n")
    assert 3 * MIB < load_runner(config, lambda phase, done: None).kv_bytes <= 4 * MIB
    (tmp_path / "memory.max").write_text("max\n")
    assert load_runner(config, lambda phase, done: None).kv_bytes == free.kv_bytes


def test_a_share_of_all_memory_is_less_what_others_use_and_the_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert share_for_kv(DeviceMemory(total=100, free=70), 0.9, weight_bytes=20) == 40
    assert share_for_kv(DeviceMemory(total=100, free=70), 0.4, weight_bytes=20) == 0
    meminfo = tmp_path / "meminfo"
    meminfo.write_text(f"MemTotal: {128 * 1024} kB\nMemAvailable: {96 * 1024} kB\n")
    monkeypatch.setattr(runner_loader, "_MEMINFO", meminfo)
    monkeypatch.setattr(runner_loader, "_CGROUP", tmp_path)
    config = CoreConfig(model_dir=str(tiny_model_dir()), num_threads=1, max_num_seqs=512, memory_utilization=0.5)
    model = open_model(tiny_model_dir())
    expected = 32 * MIB - weight_bytes(model.config, model.config.dtype)  # half of 128, of which 32 are used
    assert 0.98 * expected < load_runner(config, lambda phase, done: None).kv_bytes <= expected
    (tmp_path / "memory.max").write_text(f"{64 * MIB}\n")
    (tmp_path / "memory.current").write_text(f"{20 * MIB}\n")
    assert load_runner(config, lambda phase, done: None).kv_bytes < 12 * MIB  # half of 64, of which 20 are used
    too_little = msgspec.structs.replace(config, memory_utilization=0.1)
    with pytest.raises(NoKvMemoryError, match="--gpu-memory-utilization"):
        load_runner(too_little, lambda phase, done: None)


def test_a_step_of_llama_8b_on_a_gpu_has_room_beside_weights_and_kv() -> None:
    shape = {"hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32, "num_attention_heads": 32}
    tree = {"architectures": ["LlamaForCausalLM"], "num_key_value_heads": 8, "vocab_size": 128_256, **shape}
    config = parse_config(tree | {"rms_norm_eps": 1e-5, "max_position_embeddings": 8192})
    taken = step_bytes(config, "bfloat16", num_tokens=2048, num_rows=64)
    gate_up = torch.empty(2048, 2 * 14_336, dtype=torch.bfloat16, device="meta")
    assert taken > gate_up.nbytes + 64 * 128_256 * 8 + 2 * 14_336 * 4096 * 2, "each of them is there at once"
    assert taken < 2**30


@pytest.mark.e2e
def test_a_node_at_rest_does_not_hold_the_cache_that_it_may_use(tmp_path: Path) -> None:
    options = ("--kv-cache-memory", "3GiB", "--log-level", "INFO")
    with start_node(tmp_path, runner="torch", extra_args=options) as node:
        (ready,) = wait_for(lambda: node.events("node.ready"), "the log says what it has")
        assert ready["kv_cache_bytes"] > 2.9 * 2**30
        assert psutil.Process(node.core_pid()).memory_info().rss < 1.5 * 2**30
