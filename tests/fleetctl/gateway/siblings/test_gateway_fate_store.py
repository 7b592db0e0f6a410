from __future__ import annotations

from pathlib import Path

from fleetctl.gateway.siblings.fate_store import MAX_FILES, find_kept_fate, keep_fates


def test_a_fate_is_found_after_its_workers_end_the_last_one_of_its_id(tmp_path: Path) -> None:
    keep_fates(tmp_path, 9, [{"request_id": "a", "fate": "failed"}, {"request_id": "b", "fate": "finished"}])
    keep_fates(tmp_path, 10, [{"request_id": "a", "fate": "refused"}, {"request_id": "a", "fate": "finished"}])
    assert find_kept_fate(tmp_path, "a") == {"request_id": "a", "fate": "finished"}
    assert find_kept_fate(tmp_path, "b") == {"request_id": "b", "fate": "finished"}
    for unknown in ("c", "", '"', "a\\"):
        assert find_kept_fate(tmp_path, unknown) is None


def test_fates_of_the_last_workers_are_kept_and_no_more(tmp_path: Path) -> None:
    for worker in range(MAX_FILES + 3):
        keep_fates(tmp_path, worker, [{"request_id": f"r{worker}", "fate": "finished"}])
    keep_fates(tmp_path, 99, [])
    known = [worker for worker in range(MAX_FILES + 3) if find_kept_fate(tmp_path, f"r{worker}")]
    assert known == list(range(3, MAX_FILES + 3))
