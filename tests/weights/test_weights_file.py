"""Tests open_weights and read_weights: leaves by path, the whole tree, views and copies."""

from __future__ import annotations

import bz2
import gc
import gzip
import lzma
import os
import pickle
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jax2tf_bridge.errors import FileFormatError, StateDictError
from jax2tf_bridge.weights import (
    LeafInfo,
    WeightsFile,
    flatten_state,
    from_bytes,
    msgpack_restore,
    msgpack_serialize,
    open_weights,
    read_weights,
    to_bytes,
)

# Private: small arrays are written in chunks.
from jax2tf_bridge.weights.msgpack._write import encode
from tests.sampling import examples
from tests.weights import msgpack_by_hand as by_hand
from tests.weights.trees import arrays, same, state_dicts

# In the order in which Flax writes them.
TREE: dict[str, Any] = {
    "empty": {},
    "name": "é",
    "params": {
        "a/b": np.zeros((0, 2), np.int8),
        "dense": {"bias": np.ones(4), "kernel": np.arange(12, dtype=np.float32).reshape(3, 4)},
        "half": np.arange(3).astype(ml_dtypes.bfloat16),
    },
    "rate": 0.5,
    "step": np.int32(7),
}


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[Any], Path]:
    """Writes a file with a tree, or with bytes."""

    def store(tree: Any) -> Path:
        file = tmp_path / "weights.msgpack"
        file.write_bytes(tree if isinstance(tree, bytes) else msgpack_serialize(tree))
        return file

    return store


@pytest.fixture
def path(stored: Callable[[Any], Path]) -> Path:
    return stored(TREE)


@pytest.fixture
def chunked_path(stored: Callable[[Any], Path]) -> Path:
    tree = {"a": {"large": np.arange(60.0).reshape(3, 4, 5), "small": np.arange(3.0)}}
    return stored(b"".join(encode(tree, sort_keys=True, max_chunk_size=64).blocks()))


def _maps(array: np.ndarray) -> bool:
    """Returns whether an array is a view of a mapped file, which is not an array."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    return base is not None


def test_leaves_are_found_by_path(path: Path) -> None:
    with open_weights(path) as weights:
        assert isinstance(weights, Mapping)
        assert list(weights) == list(flatten_state(TREE))
        assert len(weights) == 8
        assert weights["params/dense/kernel"].tolist() == np.arange(12).reshape(3, 4).tolist()
        assert weights["params/half"].dtype == ml_dtypes.bfloat16
        assert weights["params/a~1b"].shape == (0, 2)
        assert isinstance(weights["step"], np.int32)
        assert [weights["step"], weights["rate"], weights["name"]] == [7, 0.5, "é"]
        assert weights["empty"] == {}
        assert "step" in weights
        assert "params" not in weights
        assert same(dict(weights), flatten_state(TREE))


def test_arrays_are_views_that_cannot_be_written_to(path: Path) -> None:
    with open_weights(path) as weights:
        kernel = weights["params/dense/kernel"]
        assert _maps(kernel)
        with pytest.raises(ValueError, match="read-only"):
            kernel[0] = 1
    tree = read_weights(path)
    assert _maps(tree["params"]["dense"]["kernel"])
    assert not any(leaf.flags.writeable for leaf in tree["params"]["dense"].values())


def test_copies_are_aligned_and_may_be_written_to(path: Path) -> None:
    tree = read_weights(path, mmap=False)
    path.unlink()
    assert same(tree, TREE)
    for leaf in flatten_state(tree["params"]).values():
        assert leaf.flags.writeable
        assert leaf.flags.aligned
        assert leaf.flags.owndata


@settings(max_examples=examples(40), deadline=None)
@given(state_dicts())
def test_files_hold_what_their_bytes_do(
    tmp_path_factory: pytest.TempPathFactory, tree: Any
) -> None:
    file = tmp_path_factory.getbasetemp() / "generated.msgpack"
    data = msgpack_serialize(tree)
    expected = msgpack_restore(data)
    temporary = file.with_suffix(".new")
    temporary.write_bytes(data)
    os.replace(temporary, file)
    assert same(read_weights(file), expected)
    assert same(read_weights(file, mmap=False), expected)
    with open_weights(file) as weights:
        assert same(weights.tree(), expected)
        assert same(dict(weights), flatten_state(expected))


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 5000), st.lists(arrays(), max_size=4), st.integers(0, 5000))
def test_windows_end_anywhere(
    tmp_path_factory: pytest.TempPathFactory, before: int, leaves: list[Any], after: int
) -> None:
    """Files are read a few thousand bytes at a time: headers lie across every boundary."""
    file = tmp_path_factory.getbasetemp() / "windows.msgpack"
    tree: dict[str, Any] = {"a": "x" * before}
    tree["b"] = {str(i): leaf for i, leaf in enumerate(leaves)}
    tree |= {"c": b"y" * after, "d": np.arange(before), "e": np.float32(3), "f": [1] * after}
    data = msgpack_serialize(tree)
    file.write_bytes(data)
    assert same(read_weights(file, mmap=False), msgpack_restore(data))
    assert same(msgpack_restore(bytearray(data)), msgpack_restore(data))


def test_chunks_are_joined_as_copies(chunked_path: Path) -> None:
    with open_weights(chunked_path) as weights:
        assert list(weights) == ["a/large", "a/small"]
        assert weights.info["a/large"] == LeafInfo((3, 4, 5), np.dtype("float64"), 480)
        large = weights["a/large"]
        assert large.tolist() == np.arange(60).reshape(3, 4, 5).tolist()
        assert large.flags.writeable
        assert not _maps(large)
        assert _maps(weights["a/small"])
    for mmap in (True, False):
        tree = read_weights(chunked_path, mmap=mmap)
        assert tree["a"]["large"].tolist() == large.tolist()


def test_what_is_known_of_the_leaves_is_known_without_their_data(path: Path) -> None:
    """Overwrites the elements first: the file has changed, and nothing reads it."""
    with open_weights(path) as weights:
        path.write_bytes(bytes(9))
        assert weights.info == {
            "params/dense/kernel": LeafInfo((3, 4), np.dtype("float32"), 48),
            "params/dense/bias": LeafInfo((4,), np.dtype("float64"), 32),
            "params/half": LeafInfo((3,), np.dtype(ml_dtypes.bfloat16), 6),
            "params/a~1b": LeafInfo((0, 2), np.dtype("int8"), 0),
            "step": LeafInfo((), np.dtype("int32"), 4),
            "rate": LeafInfo(),
            "name": LeafInfo(),
            "empty": LeafInfo(),
        }


def test_opening_reads_the_structure_alone(tmp_path: Path) -> None:
    """A hundred arrays of 8 MB, none of which is on disk: a sparse file."""
    file = tmp_path / "sparse.msgpack"
    with open(file, "wb") as handle:
        handle.write(b"\xde\x00\x64")
        for i in range(100):
            head = by_hand.text(f"layer_{i}")
            shape = by_hand.sequence(by_hand.uint(2**20), by_hand.uint(2))
            inner = b"\x93" + shape + by_hand.text("float32") + b"\xc6" + (2**23).to_bytes(4, "big")
            size = (len(inner) + 2**23).to_bytes(4, "big")
            handle.write(head + b"\xc9" + size + b"\x01" + inner)
            handle.seek(2**23, os.SEEK_CUR)
        handle.truncate(handle.tell())
    with mock.patch("os.fstat", wraps=os.fstat) as looks:
        weights = open_weights(file)
    assert len(weights) == 100
    # One look at each piece that was read: a few thousand bytes, once a leaf.
    assert looks.call_count < 150
    last = weights["layer_99"]
    assert last.shape == (2**20, 2)
    assert last[-1].tolist() == [0, 0]
    weights.close()


def test_arrays_stay_when_the_file_is_closed(path: Path) -> None:
    weights = open_weights(path)
    kernel = weights["params/dense/kernel"]
    weights.close()
    weights.close()
    path.unlink()
    gc.collect()
    assert kernel.sum() == 66
    with pytest.raises(ValueError, match=r"weights\.msgpack was closed: open it again"):
        weights["step"]
    with pytest.raises(ValueError, match=r"weights\.msgpack was closed: open it again"):
        weights.tree()
    # Methods that need no data still work.
    assert "params/half" in weights
    assert "closed" in repr(weights)


def test_nothing_stays_open_behind_what_was_read(path: Path) -> None:
    opened = Path("/proc/self/fd")
    if not opened.exists():
        pytest.skip("this system does not list open files")
    before = len(list(opened.iterdir()))
    tree = read_weights(path, mmap=False)
    mapped = [read_weights(path) for _ in range(9)]
    with open_weights(path) as weights:
        kernel = weights["params/dense/kernel"]
    assert tree["rate"] == 0.5
    del mapped, kernel, weights
    gc.collect()
    assert len(list(opened.iterdir())) == before


def test_a_path_that_is_none_is_explained(path: Path) -> None:
    with open_weights(path) as weights:
        with pytest.raises(KeyError, match=r"no leaf 'params/dense/kernl' .* did you mean 'par"):
            weights["params/dense/kernl"]
        with pytest.raises(
            KeyError, match=r"'params/dense' is not a leaf .*has 2 leaves below it, such as"
        ):
            weights["params/dense"]
        with pytest.raises(KeyError, match=r"no leaf 'nothing' in .*, which has 8 leaves"):
            weights["nothing"]
        assert weights.get("nothing") is None


def test_one_leaf_is_counted(stored: Callable[[Any], Path]) -> None:
    with open_weights(stored({"a": {"b": 1}})) as weights:
        with pytest.raises(KeyError, match="has 1 leaf below it, such as 'a/b'"):
            weights["a"]
        assert repr(weights).endswith(" of 1 leaf>")


def test_a_file_is_printed_leaf_by_leaf(path: Path, stored: Callable[[Any], Path]) -> None:
    with open_weights(path) as weights:
        assert repr(weights) == f"<msgpack file {str(path)!r} of 8 leaves>"
        lines = str(weights).splitlines()
        assert lines[0] == f"msgpack file {str(path)!r} of 8 leaves"
        assert lines[1] == "  empty                value"
        assert lines[5] == "  params/dense/kernel  float32[3,4], 48 bytes"
        assert lines[8] == "  step                 int32[], 4 bytes"
    with open_weights(stored({str(i): i for i in range(150)})) as weights:
        assert str(weights).splitlines()[-1] == "  and 50 more"


def test_a_file_is_equal_to_itself_alone(path: Path) -> None:
    with open_weights(path) as one, open_weights(path) as other:
        assert one in [one]
        assert one != other
        assert len({one, other}) == 2


def test_a_target_is_filled(path: Path) -> None:
    target = {**TREE, "params": {**TREE["params"], "half": np.zeros(9)}}
    found = read_weights(path, target=target)
    assert same(found, from_bytes(target, path.read_bytes()))
    with pytest.raises(StateDictError, match="params/half"):
        read_weights(path, target=target, strict=True)
    with pytest.raises(StateDictError, match="missing"):
        read_weights(path, target={"missing": 1})


@pytest.mark.parametrize("read", [open_weights, read_weights])
def test_errors_name_the_file(read: Any, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.msgpack"
    damaged.write_bytes(msgpack_serialize(TREE)[:-20])
    empty = tmp_path / "empty.msgpack"
    empty.write_bytes(b"")
    for file, says in ((damaged, r"byte \d+"), (empty, "byte 0: .* got the end")):
        with pytest.raises(FileFormatError, match=f"{file} cannot be read as .*{says}") as caught:
            read(file)
        assert caught.value.file == str(file)
    with pytest.raises(FileFormatError, match="is a directory: expected a file of msg"):
        read(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(tmp_path / "nothing")


def packed(compress: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda file: file.write_bytes(compress(to_bytes({"w": np.ones(3)})))


def write_npz(file: Path) -> None:
    with file.open("wb") as out:
        np.savez(out, w=np.ones(3))


def write_npy(file: Path) -> None:
    with file.open("wb") as out:
        np.save(out, np.ones(3))


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (packed(lambda data: b""), "empty"),
        (packed(gzip.compress), "a gzip file: decompress"),
        (packed(bz2.compress), "a bzip2 file"),
        (packed(lzma.compress), "an xz file"),
        (packed(lambda data: b"\x89HDF\r\n\x1a\n" + data), "an HDF5 file"),
        (packed(lambda data: b"\x18\0\0\0JXFN" + data), "a .jaxfn file, which holds a function"),
        (packed(lambda data: b'{"w": [1, 2]}'), "JSON"),
        (packed(lambda data: pickle.dumps({"w": np.ones(3)})), "a pickle"),
        (write_npz, "a zip file, as numpy.savez"),
        (write_npy, "an array of numpy.save"),
    ],
)
@pytest.mark.parametrize("read", [read_weights, open_weights])
def test_another_format_is_recognized(read: Any, write: Any, says: str, tmp_path: Path) -> None:
    file = tmp_path / "weights"
    write(file)
    with pytest.raises(FileFormatError, match=f"weights .* The bytes seem to be {says}"):
        read(file)
    with pytest.raises(FileFormatError, match=f"seem to be {says}"):
        msgpack_restore(file.read_bytes())


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(FileFormatError, match="not a regular file"):
        read_weights(pipe)


def test_one_leaf_alone_has_an_empty_path(stored: Callable[[Any], Path]) -> None:
    file = stored(np.arange(3))
    with open_weights(file) as weights:
        assert list(weights) == [""]
        assert weights[""].tolist() == [0, 1, 2]
        assert weights.tree().tolist() == [0, 1, 2]
    assert read_weights(str(file)).tolist() == [0, 1, 2]


def test_leaves_of_lists_and_of_other_kinds_have_paths(stored: Callable[[Any], Path]) -> None:
    parts = (b"\x01", by_hand.extension(9, b"abc")), (by_hand.text("a"), by_hand.sequence(b"\x05"))
    file = stored(by_hand.mapping(*(part for pair in parts for part in pair)))
    with open_weights(file) as weights:
        assert list(weights) == ["1", "a/0"]
        assert weights["1"] == (9, b"abc")
        assert weights["a/0"] == 5


def test_paths_that_two_leaves_share_are_refused(stored: Callable[[Any], Path]) -> None:
    file = stored(by_hand.mapping(b"\x01", b"\x02", by_hand.text("1"), b"\x03"))
    assert read_weights(file) == {1: 2, "1": 3}
    with pytest.raises(FileFormatError, match=r"the keys 1 and '1' .* read_weights reads it") as e:
        open_weights(file)
    assert e.value.file == str(file)


def test_deep_trees_are_listed(stored: Callable[[Any], Path]) -> None:
    with open_weights(stored(b"\x81\xa1a" * 1024 + b"\x01")) as weights:
        assert list(weights.values()) == [1]


def test_threads_share_a_file(chunked_path: Path) -> None:
    failures: list[BaseException] = []

    def use(weights: WeightsFile) -> None:
        try:
            for _ in range(50):
                assert weights["a/large"].sum() == 1770
                assert weights.tree()["a"]["small"].sum() == 3
        except BaseException as e:
            failures.append(e)

    with open_weights(chunked_path) as weights:
        threads = [threading.Thread(target=use, args=(weights,)) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failures
