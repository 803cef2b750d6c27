"""Tests safetensors files: views of every dtype, by name; damaged headers are refused."""

from __future__ import annotations

import json
import os
import struct
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file

from jax2tf_bridge.errors import FileFormatError, MissingDependencyError, StateDictError
from jax2tf_bridge.weights import open_weights, read_weights

# Private: headers are read without the tree of arrays.
from jax2tf_bridge.weights._safetensors import (
    DTYPES,
    SafetensorsContents,
    _convert_name,
    looks_like_safetensors,
)
from jax2tf_bridge.weights._sources import MappedSource
from tests.sampling import examples

PAIR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def write(path: Path, header: Any, data: bytes = b"", *, length: int | None = None) -> Path:
    """Writes a file with a header, passed as JSON or bytes, and data after it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "weights.safetensors"


def test_what_the_library_wrote(file: Path) -> None:
    tensors: dict[str, np.ndarray] = {
        "layers.0.weight": np.arange(6, dtype=np.float32).reshape(2, 3),
        "layers.0.bias": np.arange(3, dtype=np.float16),
        "mask": np.array([True, False]),
        "empty": np.zeros((0, 4), np.int64),
        "step": np.array(7, np.uint8),
    }
    save_file(tensors, file, metadata={"format": "np"})
    with open_weights(file) as weights:
        assert weights.format_name == "safetensors"
        assert weights.metadata == {"format": "np"}
        assert set(weights) == set(tensors)
        for name, expected in tensors.items():
            found = weights[name]
            assert found.dtype == expected.dtype
            np.testing.assert_array_equal(found, expected)
    assert set(read_weights(file)) == set(tensors)


@pytest.mark.parametrize(
    ("code", "dtype"),
    [
        ("BF16", ml_dtypes.bfloat16),
        ("F8_E4M3", ml_dtypes.float8_e4m3fn),
        ("F8_E5M2", ml_dtypes.float8_e5m2),
        ("F8_E8M0", ml_dtypes.float8_e8m0fnu),
        ("F8_E4M3FNUZ", ml_dtypes.float8_e4m3fnuz),
        ("F8_E5M2FNUZ", ml_dtypes.float8_e5m2fnuz),
        ("C64", np.complex64),
        ("F64", np.float64),
        ("I16", np.int16),
        ("U64", np.uint64),
    ],
)
def test_dtypes(code: str, dtype: Any, file: Path) -> None:
    values = np.array([1, 2, 4]).astype(dtype)
    entry = {"dtype": code, "shape": [3], "data_offsets": [0, values.nbytes]}
    with open_weights(write(file, {"w": entry}, values.tobytes())) as weights:
        assert weights.info["w"].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(weights["w"], values)


def test_arrays_are_views_that_outlive_the_file(file: Path) -> None:
    save_file({"w": np.ones(1000, np.float32)}, file)
    with open_weights(file) as weights:
        view = weights["w"]
    assert not view.flags.owndata
    assert not view.flags.writeable
    np.testing.assert_array_equal(view, 1)
    copy = read_weights(file, mmap=False)["w"]
    assert copy.flags.writeable


def test_slashes_in_names_lead_on(file: Path) -> None:
    names = ["params/dense/kernel", "params/dense/bias", "a~b", "a/~/b", "x.y"]
    save_file({name: np.full(1, i, np.int32) for i, name in enumerate(names)}, file)
    tree = read_weights(file)
    assert tree["params"]["dense"]["kernel"] == 0
    assert tree["params"]["dense"]["bias"] == 1
    assert tree["a~b"] == 2
    assert tree["a"][""]["b"] == 3
    assert tree["x.y"] == 4
    with open_weights(file) as weights:
        assert set(weights) == {"params/dense/kernel", "params/dense/bias", "a~0b", "a/~/b", "x.y"}


def test_a_name_through_another_tensor_has_no_tree(file: Path) -> None:
    save_file({"a": np.zeros(1), "a/b": np.ones(1)}, file)
    with open_weights(file) as weights:
        assert weights["a/b"] == 1
    with pytest.raises(StateDictError, match="'a'"):
        read_weights(file)


@pytest.mark.parametrize(
    ("header", "data", "problem"),
    [
        (b"", b"", "it is not JSON"),
        (b"{nope", b"", "it is not JSON"),
        (b"[]", b"", "the whole: expected an object"),
        (b'{"\xff":1}', b"", "byte 10, in the header, is not UTF-8"),
        (b'{"a":' * 100_000, b"", "its values are nested too deeply"),
        (b'{"a":1,"a":2}', b"", "has a field twice: a, a"),
        (b'{"a\\ud83d":{}}', b"", "expected text, got 'a\\\\ud83d'"),
        ({"a": 1}, b"", r"\['a'\]: expected an object with the field dtype, got 1"),
        ({"a": PAIR}, bytes(7), "it ends too early: its tensors take 8 bytes, and it has 7"),
        ({"a": PAIR}, bytes(9), "it has more at its end: its tensors take 8 bytes, and it has 9"),
        (
            {"a": PAIR, "b": PAIR},
            bytes(8),
            "the tensor 'b' overlaps the one before: it begins at byte 0 of the data, expected 8",
        ),
        (
            {"a": PAIR | {"data_offsets": [4, 12]}},
            bytes(12),
            "the tensor 'a' leaves a gap before it: it begins at byte 4 of the data, expected 0",
        ),
        ({"a": PAIR | {"data_offsets": [8, 0]}}, bytes(8), r"got \[8, 0\]"),
        ({"a": PAIR | {"data_offsets": [0]}}, bytes(8), r"got \[0\]"),
        ({"a": PAIR | {"shape": [3]}}, bytes(8), r"'a' is float32\[3\], 12 bytes, but has 8"),
        ({"a": PAIR | {"shape": [-2]}}, bytes(8), "expected a whole number from 0"),
        ({"a": PAIR | {"shape": [2.0]}}, bytes(8), "expected a whole number from 0"),
        ({"a": PAIR | {"shape": [True, 2]}}, bytes(8), "expected a whole number from 0"),
        ({"a": PAIR | {"shape": [2**40, 2**40]}}, bytes(8), "too many bytes for any file"),
        ({"a": PAIR | {"shape": [2**62] * 100_000}}, bytes(8), "100000 dimensions, and at most"),
        ({"a": PAIR | {"shape": [1] * 64 + [2]}}, bytes(8), "65 dimensions, and at most (64|32)"),
        (
            {"a": {"dtype": "F32", "shape": [2**40, 2**40, 0], "data_offsets": [0, 0]}},
            b"",
            "too many bytes for any file",
        ),
        (
            {"a": PAIR | {"dtype": "F4"}},
            bytes(8),
            "expected a dtype that NumPy supports: BOOL, I8, .*, got 'F4'",
        ),
        ({"a": PAIR | {"dtype": "F31"}}, bytes(8), "got 'F31'"),
        ({"__metadata__": {"step": 1}}, b"", "expected text, got 1"),
    ],
)
def test_damaged_headers(header: Any, data: bytes, problem: str, file: Path) -> None:
    write(file, header, data)
    with (
        MappedSource(file) as source,
        pytest.raises(FileFormatError, match=problem) as caught,
    ):
        SafetensorsContents(source)
    assert str(caught.value).startswith(f"{file} cannot be read as a safetensors file: ")
    assert caught.value.file == str(file)


@pytest.mark.parametrize(
    ("length", "problem"),
    [
        (2**63, "its header has 9223372036854775808 bytes, and at most 100000000 are allowed"),
        (100, "its header should have 100 bytes, but only 2 follow its length"),
    ],
)
def test_lengths_of_headers(length: int, problem: str, file: Path) -> None:
    write(file, b"{}", length=length)
    with MappedSource(file) as source, pytest.raises(FileFormatError, match=problem):
        SafetensorsContents(source)


def test_a_file_that_ends_early_at_every_byte(file: Path) -> None:
    save_file({"a": np.ones(3, np.float32), "b": np.ones(2, np.int8)}, file)
    whole = file.read_bytes()
    # Fewer bytes do not identify the format.
    for count in range(9, len(whole)):
        file.write_bytes(whole[:count])
        with pytest.raises(FileFormatError):
            open_weights(file)


def test_any_header_is_refused_or_read_as_the_library_reads_it(tmp_path: Path) -> None:
    file = tmp_path / "any.safetensors"
    numbers = st.integers(-2, 2**65) | st.sampled_from([0, 4, 8, 12, 16])
    junk = st.none() | st.booleans() | numbers | st.floats() | st.text(max_size=3)
    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "I8", "BF16", "F4", "?"]) | junk,
            "shape": st.lists(numbers | junk, max_size=3) | junk,
            "data_offsets": st.lists(numbers, max_size=3) | junk,
        }
    )
    headers = st.dictionaries(
        st.text(max_size=3) | st.just("__metadata__"), entry | junk, max_size=3
    )

    @settings(max_examples=examples(100), deadline=None, suppress_health_check=list(HealthCheck))
    @given(headers, st.binary(max_size=20))
    def check(header: Any, data: bytes) -> None:
        write(file, header, data)
        try:
            weights = open_weights(file)
        except FileFormatError:
            return
        with weights, safe_open(file, "np") as library:
            found = {name: library.get_slice(name) for name in library.keys()}  # noqa: SIM118
            read = {
                _convert_name(name): (s.get_dtype(), s.get_shape()) for name, s in found.items()
            }
            codes = {name: code for code, name in DTYPES.items()}
            arrays = {path: weights[path] for path in weights}
            assert {p: (codes[a.dtype.name], list(a.shape)) for p, a in arrays.items()} == read
            assert sum(array.nbytes for array in arrays.values()) == len(data)

    check()


def test_a_file_that_changes(file: Path) -> None:
    save_file({"w": np.ones(1000, np.float32)}, file)
    with open_weights(file) as weights:
        os.truncate(file, 100)
        with pytest.raises(FileFormatError, match="changed while it was open"):
            weights["w"]


def test_a_dtype_of_a_later_ml_dtypes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, {"a": PAIR | {"dtype": "F8_E5M2", "shape": [8]}}, bytes(8))
    monkeypatch.delattr(ml_dtypes, "float8_e5m2")
    with pytest.raises(FileFormatError, match=r"'a' is of float8_e5m2: expected a dtype of ml_dty"):
        open_weights(file)


def test_without_ml_dtypes(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(file, {"a": PAIR | {"dtype": "BF16", "shape": [4]}}, bytes(8))
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(MissingDependencyError, match=f"reading bfloat16 from {file} needs ml_dty"):
        open_weights(file)


def test_files_are_told_by_their_beginning(file: Path) -> None:
    save_file({"w": np.ones(1)}, file)
    assert looks_like_safetensors(file.read_bytes()[:16])
    # A msgpack map of one text that is a brace, and one of nothing.
    assert not looks_like_safetensors(b"\x81\xa8{{{{{{{{\x01")
    assert not looks_like_safetensors(b"\x80")
