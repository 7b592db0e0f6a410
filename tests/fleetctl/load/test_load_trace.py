from __future__ import annotations

import json
from pathlib import Path

import pytest

from fleetctl.kit.errors import BadInputError
from fleetctl.load.shape import RequestShape, Scale, scale_shapes
from fleetctl.load.trace import load_trace

MOONCAKE = [
    {"timestamp": 0, "input_length": 1200, "output_length": 52, "hash_ids": [46, 47, 48]},
    {"timestamp": 3000, "input_length": 600, "output_length": 1, "hash_ids": [46, 49]},
    {"timestamp": 1500, "input_length": 10, "output_length": 0, "hash_ids": []},
]
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51,879,0
"""


def write_mooncake(folder: Path, *lines: object) -> Path:
    path = folder / "trace.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def test_mooncake_lines_become_shapes_in_order_of_time(tmp_path: Path) -> None:
    shapes = load_trace(write_mooncake(tmp_path, *MOONCAKE))
    assert shapes == [
        RequestShape(0.0, 1200, 52, (46, 47, 48)),
        RequestShape(1.5, 10, 1, ()),
        RequestShape(3.0, 600, 1, (46, 49)),
    ]


def test_azure_rows_become_shapes_from_the_first_time_on(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE)
    shapes = load_trace(path)
    assert [(s.prompt_tokens, s.output_tokens, s.prefix_ids) for s in shapes] == [
        (374, 44, ()),
        (396, 109, ()),
        (879, 1, ()),
    ]
    assert [round(s.at_s, 6) for s in shapes] == [0.0, 4.314579, 4.31941]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("not json", "not JSON"),
        ("[1]", "trace.jsonl:2: line"),
        ({"timestamp": 0, "input_length": 1}, "output_length"),
        ({"timestamp": -1, "input_length": 1, "output_length": 1}, "timestamp"),
        ({"timestamp": 0, "input_length": "12", "output_length": 1}, "input_length"),
        ({"timestamp": 0, "input_length": 10**9, "output_length": 1}, "input_length"),
        ({"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": ["a"]}, "hash_ids.0"),
        ('{"timestamp": NaN, "input_length": 1, "output_length": 1}', "timestamp"),
        ("[" * 100_000, "trace.jsonl:2"),
    ],
    ids=range(9),
)
def test_a_bad_mooncake_line_is_named(tmp_path: Path, line: object, says: str) -> None:
    path = write_mooncake(tmp_path, MOONCAKE[0], line)
    with pytest.raises(BadInputError) as caught:
        load_trace(path)
    assert f"{path}:2: " in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("yesterday,1,1", "TIMESTAMP"),
        ("2023-11-16 18:15:51,many,1", "ContextTokens"),
        ("2023-11-16 18:15:51,1,-4", "GeneratedTokens"),
        ("2023-11-16 18:15:51,1", "GeneratedTokens"),
        ("2023-11-16 18:15:51,1,99999999999", "GeneratedTokens"),
        ("2023-11-16 18:15:51+00:00,1,1", "time zone"),
    ],
)
def test_a_bad_azure_row_is_named(tmp_path: Path, row: str, says: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + row + "\n")
    with pytest.raises(BadInputError) as caught:
        load_trace(path)
    assert f"{path}:5: " in caught.value.message
    assert says in caught.value.message


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("trace.txt", b"x", "unknown kind"),
        ("trace.csv", b"a,b\n1,2\n", ":1: expected the columns"),
        ("trace.csv", b"", ":1: expected the columns"),
        ("trace.csv", b"TIMESTAMP,ContextTokens,GeneratedTokens\n", "no requests"),
        ("trace.jsonl", b"", "no requests"),
        ("trace.jsonl", b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_no_trace_is_named(tmp_path: Path, name: str, content: bytes, says: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(BadInputError, match=says):
        load_trace(path)


def test_an_absent_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match=r"absent\.csv: No such file"):
        load_trace(tmp_path / "absent.csv")


def test_scaling_keeps_what_is_shared() -> None:
    shapes = [RequestShape(10.0, 2048, 100, (1, 2, 3, 4)), RequestShape(20.0, 1024, 50, (1, 2))]
    small = list(
        scale_shapes(shapes, Scale(time_ratio=0.5, length_ratio=0.125, max_prompt_tokens=200, max_output_tokens=10))
    )
    assert small == [RequestShape(5.0, 200, 10, (1, 2, 3, 4), 64), RequestShape(10.0, 128, 6, (1, 2), 64)]
    cut = list(scale_shapes(shapes, Scale(max_prompt_tokens=600)))
    assert [s.prefix_ids for s in cut] == [(1, 2), (1, 2)]


@pytest.mark.parametrize(
    "wrong", [{"time_ratio": 0}, {"length_ratio": -1}, {"max_prompt_tokens": 0}, {"max_output_tokens": -1}], ids=repr
)
def test_a_senseless_scale_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="scale"):
        Scale(**wrong)
