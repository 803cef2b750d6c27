"""Variables as TensorFlow writes them are read without it, and damage is told."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.saved_model import (
    TensorBundle,
    bytes_field,
    read_saved_weights,
    varint_field,
)

# Private: a checksum shows only that a file is sound; these compare its values.
from jax2tf_bridge.saved_model._crc32c import (
    _crc32c_by_numpy,
    _load_google_extend,
    _make_byte_table,
    crc32c,
    unmask_checksum,
)
from jax2tf_bridge.saved_model._tensors import STRING

SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"


def plain_crc32c(data: bytes) -> int:
    """Computes the checksum byte by byte."""
    table = _make_byte_table().tolist()
    state = 0xFFFFFFFF
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ state >> 8
    return int(state ^ 0xFFFFFFFF)


@pytest.fixture(scope="module")
def values() -> dict[str, object]:
    generator = np.random.default_rng(0)
    return {
        "float32": generator.normal(size=(3, 4)).astype(np.float32),
        "float64": np.float64(0.1),
        "bfloat16": tf.constant([1.5, -2.0], tf.bfloat16),
        "float16": np.ones((2, 0), np.float16),
        "bool": np.array([True, False, True]),
        "int8": np.arange(-3, 3, dtype=np.int8),
        "uint32": np.array([2**32 - 1], np.uint32),
        "int64": np.array([[-(2**62)]]),
        "complex64": np.array([1 + 2j], np.complex64),
        "large": generator.normal(size=(300, 70)),
        "name.with/odd": np.arange(5),
    }


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> str:
    module = tf.Module()
    module.held = {name: tf.Variable(value) for name, value in values.items()}
    module.text = tf.Variable(["a", "longer"])
    folder = tmp_path_factory.mktemp("bundle")
    tf.saved_model.save(module, str(folder))
    return str(folder / "variables" / "variables")


def test_reads_what_tensorflow_reads(prefix: str) -> None:
    bundle, reader = TensorBundle(prefix), tf.train.load_checkpoint(prefix)
    shapes = reader.get_variable_to_shape_map()
    dtypes = reader.get_variable_to_dtype_map()
    assert bundle.entries.keys() == shapes.keys()
    for key, entry in bundle.entries.items():
        assert entry.shape == tuple(shapes[key])
        assert entry.dtype == dtypes[key].name
        if entry.dtype != STRING:
            expected = np.asarray(reader.get_tensor(key))
            found = np.frombuffer(bundle.read(key), expected.dtype).reshape(entry.shape)
            np.testing.assert_array_equal(found, expected, strict=True)


def test_reads_many_variables_over_several_blocks(tmp_path: Path) -> None:
    tensors = [tf.constant(float(i)) for i in range(3000)]
    names = [f"layer_{i}/kernel" for i in range(3000)]
    prefix = str(tmp_path / "many")
    tf.raw_ops.SaveV2(
        prefix=prefix, tensor_names=names, shape_and_slices=[""] * 3000, tensors=tensors
    )
    bundle = TensorBundle(prefix)
    assert len(bundle.entries) == 3000
    for i in (0, 7, 2999):
        assert np.frombuffer(bundle.read(f"layer_{i}/kernel"), np.float32) == i


@given(st.binary(max_size=300))
def test_checksum_of_short_data(data: bytes) -> None:
    assert crc32c(data) == _crc32c_by_numpy(memoryview(data)) == plain_crc32c(data)


@pytest.mark.parametrize("size", [16383, 16384, 16387, 70_001])
def test_checksum_of_lanes(size: int) -> None:
    data = np.random.default_rng(size).bytes(size)
    assert crc32c(data) == _crc32c_by_numpy(memoryview(data)) == plain_crc32c(data)


@pytest.mark.parametrize("implementation", ["c", "python", "", None])
def test_checksum_by_google_where_it_is_installed_and_compiled(
    implementation: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def extend(checksum: int, data: bytes) -> int:
        asked.append(data)
        return checksum + len(data)

    module = SimpleNamespace(extend=extend, implementation=implementation)
    monkeypatch.setitem(sys.modules, "google_crc32c", module if implementation else None)
    _load_google_extend.cache_clear()
    try:
        data = bytes(1 << 20) + b"123456789"
        found = crc32c(memoryview(data))
    finally:
        _load_google_extend.cache_clear()
    if implementation == "c":
        assert (found, b"".join(asked)) == (len(data), data)
    else:
        assert (found, asked) == (plain_crc32c(data), [])


def test_checksum_is_unmasked() -> None:
    # The checksum of b"123456789" as tensor bundles store it.
    rotated = (0xE3069283 >> 15 | 0xE3069283 << 17) & 0xFFFFFFFF
    assert unmask_checksum((rotated + 0xA282EAD8) & 0xFFFFFFFF) == 0xE3069283


def test_truncations_of_the_index_are_told(prefix: str, tmp_path: Path) -> None:
    data = Path(f"{prefix}.index").read_bytes()
    # Each size that cuts the footer, and each seventh that cuts an entry or a block.
    for size in (*range(0, len(data), 7), *range(len(data) - 60, len(data))):
        Path(tmp_path, "v.index").write_bytes(data[:size])
        with pytest.raises(FileFormatError, match=r"v\.index cannot be read: in the index of"):
            TensorBundle(tmp_path / "v")


@pytest.mark.slow
def test_each_flipped_byte_of_the_index_is_told(prefix: str, tmp_path: Path) -> None:
    data = bytearray(Path(f"{prefix}.index").read_bytes())
    end = len(data) - 48
    for position in range(len(data)):
        data[position] ^= 0x55
        Path(tmp_path, "v.index").write_bytes(data)
        try:
            TensorBundle(tmp_path / "v")
        except FileFormatError:
            pass
        else:
            # The padding of the footer, from which nothing is read.
            assert end + 4 < position < end + 40, position
        data[position] ^= 0x55


@pytest.mark.parametrize("damage", ["flipped", "short"])
def test_damaged_data_is_told(prefix: str, tmp_path: Path, damage: str) -> None:
    for suffix in (".index", ".data-00000-of-00001"):
        Path(tmp_path, f"v{suffix}").write_bytes(Path(f"{prefix}{suffix}").read_bytes())
    file = tmp_path / "v.data-00000-of-00001"
    bundle = TensorBundle(tmp_path / "v")
    key = f"held/large{SUFFIX}"
    entry = bundle.entries[key]
    data = bytearray(file.read_bytes())
    if damage == "short":
        del data[entry.start + 100 :]
        match = "is cut short"
    else:
        data[entry.start + entry.size // 2] ^= 1
        match = "the checksum of held/large"
    file.write_bytes(data)
    with pytest.raises(FileFormatError, match=match):
        bundle.read(key)


def _block(entries: bytes, kind: int = 0) -> bytes:
    content = entries + (0).to_bytes(4, "little")
    checked = crc32c(content + bytes([kind]))
    rotated = (checked >> 15 | checked << 17) & 0xFFFFFFFF
    stored = (rotated + 0xA282EAD8) & 0xFFFFFFFF
    return content + bytes([kind]) + stored.to_bytes(4, "little")


def _index(entries: bytes, kind: int = 0, empties: int = 0) -> bytes:
    """Builds an index with correct checksums around one block of entries.

    Args:
      entries: the entries of the block.
      kind: the kind of compression.
      empties: the number of handles of an empty block.
    """
    block = _block(entries, kind)
    size = len(block) - 5
    handle = bytes([0, size])
    handles = bytes([0, 1, len(handle)]) + b"z" + handle
    empty = _block(b"")
    begin = len(block) + len(_block(handles + empties * bytes(6)))
    another = bytes([begin, len(empty) - 5])
    handles += b"".join(bytes([i + 1, 1, 2]) + b"z" + another for i in range(empties))
    outer = _block(handles)
    footer = bytes([begin, len(empty) - 5, len(block), len(outer) - 5]).ljust(40, b"\0")
    return block + outer + empty + footer + (0xDB4775248B80FB57).to_bytes(8, "little")


HEADER = bytes([0, 0, 2, 8, 1])


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        (_index(b""), "it has no header"),
        (_index(HEADER, kind=1), "a block is compressed"),
        (_index(HEADER, empties=2), "its blocks overlap"),
        (_index(bytes([0, 0, 4, 8, 1, 16, 1])), "on a big-endian machine"),
        (_index(bytes([0, 0, 2, 8, 0])), "it names 0 files"),
        (_index(HEADER + bytes([0, 1, 2]) + b"k" + bytes([24, 5])), "is in file 5 of 1"),
        (_index(HEADER + bytes([5, 1, 0]) + b"k"), "an entry is longer than its block"),
        (_index(HEADER + bytes([0, 1, 0]) + b"k" + bytes([0, 1, 0]) + b"k"), "not sorted"),
        (_index(HEADER + bytes([0, 1, 4]) + b"k" + bytes([8, 1, 40, 9])), "of 4 bytes has 9"),
        (_index(HEADER + bytes([0, 1, 2]) + b"k" + bytes([58, 0])), "slices of variables"),
    ],
)
def test_what_no_bundle_says_is_refused(tmp_path: Path, index: bytes, problem: str) -> None:
    Path(tmp_path, "v.index").write_bytes(index)
    with pytest.raises(FileFormatError, match=problem):
        TensorBundle(tmp_path / "v")


def test_a_block_without_entries_is_read(tmp_path: Path) -> None:
    Path(tmp_path, "v.index").write_bytes(_index(HEADER, empties=1))
    assert TensorBundle(tmp_path / "v").entries == {}


def test_weights_that_numpy_cannot_hold_are_refused(tmp_path: Path) -> None:
    sizes = b"".join(bytes_field(2, varint_field(1, size)) for size in (0, 2**62, 2**62))
    entry = varint_field(1, 1) + bytes_field(2, sizes) + b"\x35\xd8\xea\x82\xa2"
    folder = tmp_path / "variables"
    folder.mkdir()
    index = _index(HEADER + bytes([0, 8, len(entry)]) + b"params/w" + entry)
    Path(folder, "variables.index").write_bytes(index)
    Path(folder, "variables.data-00000-of-00001").touch()
    Path(tmp_path, "saved_model.pb").touch()
    with pytest.raises(FileFormatError, match=r"params/w has the shape .* which NumPy's arrays"):
        read_saved_weights(tmp_path)


@given(st.binary(max_size=60))
def test_entries_of_any_bytes_end_in_one_error(tmp_path_factory: object, data: bytes) -> None:
    factory = tmp_path_factory
    assert isinstance(factory, pytest.TempPathFactory)
    folder = factory.getbasetemp()
    Path(folder, "any.index").write_bytes(_index(HEADER + data))
    try:
        TensorBundle(folder / "any")
    except FileFormatError as e:
        assert e.file is not None  # noqa: PT017, damage is one of two good ends
