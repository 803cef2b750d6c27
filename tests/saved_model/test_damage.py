"""Damaged SavedModels: they are read, or refused with FileFormatError, and nothing else."""

from __future__ import annotations

import json
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.inspecting import describe_saved_model, read_saved_model
from jax2tf_bridge.saved_model import bytes_field
from tests.sampling import examples, stride
from tests.saved_model.by_hand import (
    Call,
    Model,
    calling,
    constant,
    differentiable,
    node,
    preventing,
)

GOLDEN = sorted(p for p in (Path(__file__).parents[2] / "saved_models").glob("*/saved_model.pb"))

MODEL = Model(
    {
        "main": [Call(b"ML\xefR\x0dStableHLO_v1.2.3\0").node(), differentiable("d", "kind")],
        "vjp": [Call(b"", platforms=["CPU", "CUDA"]).node(), preventing("no more")],
        "other": [calling("c", "main"), constant("k", (3,))],
    },
    gradients={"kind": "vjp"},
    variables={"w": (2, 3), "v": ()},
    methods={"f": "other"},
    defaults=["x"],
    assets=["words"],
)
DATA = MODEL.proto()


def described(folder: Path, data: bytes) -> bool:
    """Returns whether the graph can be read; otherwise it is refused with one error."""
    (folder / "saved_model.pb").write_bytes(data)
    try:
        facts = describe_saved_model(read_saved_model(folder))
    except FileFormatError as e:
        if str(folder) not in str(e):
            raise
        return False
    json.dumps(facts)
    return True


def test_the_model_itself_is_read(tmp_path: Path) -> None:
    assert described(tmp_path, DATA)


def test_cut_short_anywhere(tmp_path: Path) -> None:
    for size in range(0, len(DATA), 3):
        assert not described(tmp_path, DATA[:size])


def test_damage_in_a_function_that_nothing_reaches(tmp_path: Path) -> None:
    damaged = node("n", "NoOp", attributes={"a": b"\xff"})
    unreached = replace(MODEL, functions={**MODEL.functions, "unreached": [damaged]})
    assert not described(tmp_path, unreached.proto())


def test_a_bit_of_bytes_flipped(tmp_path: Path) -> None:
    data = bytearray(DATA)
    read = 0
    for position in range(0, len(data), stride(3)):
        bit = 1 << position * 5 % 8
        data[position] ^= bit
        read += described(tmp_path, bytes(data))
        data[position] ^= bit
    assert 0 < read < len(data) // stride(3)  # a name may be another one


@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_bytes_put_in_taken_away_or_repeated(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(DATA)))
    end = data.draw(st.integers(start, len(DATA)))
    between = data.draw(st.one_of(st.binary(max_size=20), st.just(DATA[start:end] * 2)))
    folder = tmp_path_factory.mktemp("damaged")
    described(folder, DATA[:start] + between + DATA[end:])


@pytest.mark.checkout
@pytest.mark.parametrize("file", GOLDEN, ids=[p.parent.name for p in GOLDEN])
def test_golden_models_damaged(tmp_path: Path, file: Path) -> None:
    data = file.read_bytes()
    source = random.Random(0)
    for _ in range(60):
        assert not described(tmp_path, data[: source.randrange(len(data))])
        flipped = bytearray(data)
        for _ in range(3):
            flipped[source.randrange(len(data))] ^= 1 << source.randrange(8)
        described(tmp_path, bytes(flipped))


def test_work_is_bounded_by_the_size(tmp_path: Path) -> None:
    """Many signatures that each reach all functions, which all call each other."""
    count = 2000
    functions = {f"f{i}": [calling("c", f"f{(i + 1) % count}")] for i in range(count)}
    functions["main"] = [Call(b"").node(), calling("c", "f0")]
    data = Model(functions, methods={f"m{i}": f"f{i}" for i in range(count)}).proto()
    (tmp_path / "saved_model.pb").write_bytes(data)
    begun = time.monotonic()
    contents = read_saved_model(tmp_path)
    assert contents.more_entries > count - 300
    describe_saved_model(contents)
    assert time.monotonic() - begun < 20


def test_a_long_chain_of_objects(tmp_path: Path) -> None:
    """Each object's path could be as long as the file."""
    count = 5000
    objects = b"".join(
        bytes_field(1, bytes_field(1, b"\x08" + _varint(i + 1) + bytes_field(2, "child" * 20)))
        for i in range(count)
    )
    graph = bytes_field(2, bytes_field(1, Call(b"").node()))
    data = bytes_field(2, graph + bytes_field(7, objects))
    (tmp_path / "saved_model.pb").write_bytes(data)
    begun = time.monotonic()
    assert len(read_saved_model(tmp_path).modules) == 1
    assert time.monotonic() - begun < 10


def _varint(value: int) -> bytes:
    return bytes([value & 0x7F | 0x80, value >> 7]) if value > 0x7F else bytes([value])
