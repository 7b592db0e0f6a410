"""Four bits that were calibrated: nearer to the model, the same bits on every start, kept for the next one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from engine.core.runner_loader import load_runner
from engine.model import calibration, calibration_cache
from engine.model.calibration import calibrate
from engine.model.decoder import Decoder
from engine.model.directory import open_model
from engine.model.make import make_model
from engine.model.weights import load_weights
from engine.protocol.core_config import CoreConfig
from kernels.quantization import Quantization
from tests.engine.model.test_gguf_model import wide  # noqa: F401
from tests.engine.model.test_model_logits import Paged, _prompt
from tests.fixtures.gguf_model import Type, write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("CACHE_DIRECTORY", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(calibration, "TEXTS", 8)
    monkeypatch.setattr(calibration, "TEXT_TOKENS", 32)
    return tmp_path / "cache" / "fleetctl" / "calibrated"


@pytest.fixture
def threads() -> Iterator[None]:
    count = torch.get_num_threads()
    yield
    torch.set_num_threads(count)


class Rounded(Paged):
    def __init__(self, path: Path, kind: Quantization | None, *, is_calibrated: bool = True) -> None:
        super().__init__(path)
        model = open_model(path)
        weights = load_weights(model, dtype=torch.float32, device="cpu", quantization=kind)
        self.steps: list[float] = []
        self.rounding = (
            calibrate(model, weights, lambda phase, done: self.steps.append(done)) if is_calibrated else None
        )
        self.decoder = Decoder(model.config, weights, num_positions=512)
        self.decoder.prepare()


@pytest.mark.parametrize("kind", ["int4", "w4a8"])
def test_logits_are_nearer_to_the_models_than_plainly_rounded(wide: Path, kind: Quantization) -> None:  # noqa: F811
    tokens = _prompt(1, 60)
    wanted, plain, found = (
        Rounded(wide, of, is_calibrated=is_calibrated).logits({0: tokens}, [(0, 0, 60)])
        for of, is_calibrated in ((None, False), (kind, False), (kind, True))
    )
    assert (found - wanted).std() < 0.95 * (plain - wanted).std()


def test_each_start_has_the_same_bits_whatever_threads_it_has(wide: Path, cache: Path, threads: None) -> None:  # noqa: F811
    found = []
    for count in (1, 2, 2):
        torch.set_num_threads(count)
        for path in cache.glob("*"):
            path.unlink()
        found.append(Rounded(wide, "int4").rounding)
    assert found[0] is not None
    assert found == found[:1] * 3


def test_alone_and_in_a_batch_a_sequence_has_the_same_bits(wide: Path) -> None:  # noqa: F811
    prompts = {i: _prompt(i, 20 + i) for i in range(3)}
    paged = Rounded(wide, "int4")
    together = paged.logits(prompts, [(i, 0, 20 + i) for i in range(3)]).clone()
    for i in range(3):
        assert torch.equal(Rounded(wide, "int4").logits({i: prompts[i]}, [(i, 0, 20 + i)])[0], together[i])


def test_the_next_start_takes_what_was_kept(wide: Path, cache: Path) -> None:  # noqa: F811
    first, second = Rounded(wide, "int4"), Rounded(wide, "int4")
    assert len(list(cache.iterdir())) == 1
    assert first.rounding == second.rounding
    assert len(second.steps) < len(first.steps)  # nothing was written and no layer read
    tokens = _prompt(1, 30)
    assert torch.equal(*(one.logits({0: tokens}, [(0, 0, 30)]) for one in (first, second)))


def test_a_kept_file_that_is_damaged_is_made_again(wide: Path, cache: Path) -> None:  # noqa: F811
    whole = Rounded(wide, "int4").rounding
    (kept,) = cache.iterdir()
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    for broken in (bytes(data), bytes(data[:50]), b""):
        kept.write_bytes(broken)
        assert Rounded(wide, "int4").rounding == whole
        assert kept.stat().st_size == len(data)


def test_weights_that_changed_under_the_same_name_are_calibrated_anew(tmp_path: Path, cache: Path) -> None:
    found = [Rounded(make_model(tmp_path / "model", seed=seed), "int4").rounding for seed in (1, 2)]
    assert found[0] != found[1]
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_written_costs_the_keeping_alone(
    wide: Path,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert Rounded(wide, "int4").rounding is not None


def test_the_latest_few_are_kept(wide: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(calibration_cache, "KEPT_FILES", 1)
    cache.mkdir(parents=True)
    for name in ("a", "b"):
        (cache / f"{name}.calibrated").write_bytes(b"")
    Rounded(wide, "int4")
    assert len(list(cache.iterdir())) == 2


def test_blocks_of_a_file_and_eight_bits_are_left_as_they_are(wide: Path, tmp_path: Path, cache: Path) -> None:  # noqa: F811
    assert Rounded(write_gguf(wide, tmp_path / "q.gguf", Type.Q4_0), "int4").rounding is None
    assert Rounded(wide, "int8").rounding is None
    assert not cache.exists()


def test_a_model_whose_answers_are_no_numbers_is_left_to_the_warm_up(tmp_path: Path) -> None:
    path = make_model(tmp_path / "model")
    model = open_model(path)
    weights = load_weights(model, dtype=torch.float32, device="cpu", quantization="int4")
    weights.final_norm.fill_(float("nan"))
    assert calibrate(model, weights) is None


def test_a_node_starts_with_it_and_says_what_it_found(wide: Path) -> None:  # noqa: F811
    config = CoreConfig(model_dir=str(wide), dtype="float32", quantization="int4", calibration=True, num_kv_blocks=32)
    loaded = load_runner(config, lambda phase, done: None)
    assert loaded.rounding == Rounded(wide, "int4").rounding
    loaded.runner.warm_up()


@pytest.mark.parametrize("kind", [None, "int8"])
def test_where_nothing_would_be_calibrated_the_option_is_refused(wide: Path, kind: Quantization | None) -> None:  # noqa: F811
    config = CoreConfig(model_dir=str(wide), quantization=kind, calibration=True, num_kv_blocks=8)
    with pytest.raises(ValueError, match="--calibration: it is of --quantization int4 and w4a8 on a CPU"):
        load_runner(config, lambda phase, done: None)
