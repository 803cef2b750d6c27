"""Tensors that are added to a bundle are read by TensorFlow and by the bridge."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge.errors import FileFormatError, SavingError
from jax2tf_bridge.saved_model import NewTensor, TensorBundle, TensorSpec, append_tensors
from jax2tf_bridge.weights.msgpack import byte_blocks

GENERATOR = np.random.default_rng(0)
VALUES: Mapping[str, np.ndarray] = {
    "a/float32": GENERATOR.normal(size=(3, 4)).astype(np.float32),
    "b/scalar": np.array(0.1),
    "c/bfloat16": np.array([1.5, -2.0], tf.bfloat16.as_numpy_dtype),
    "d/empty": np.ones((2, 0), np.float16),
    "e/bool": np.array([True, False, True]),
    "f/complex": np.array([1 + 2j], np.complex64),
    # Several pieces, the last of them short.
    "g/long": GENERATOR.normal(size=300_001),
    "zz/last": np.arange(5),
}


def new_tensor(array: np.ndarray, *, times: int = 1) -> NewTensor:
    def blocks() -> Iterator[memoryview]:
        for _ in range(times):
            yield from byte_blocks(array)

    return NewTensor(TensorSpec(array.dtype.name, array.shape), blocks)


@pytest.fixture
def prefix(tmp_path: Path) -> str:
    prefix = str(tmp_path / "variables")
    texts = tf.constant([b"a", b"longer"])
    tf.raw_ops.SaveV2(
        prefix=prefix,
        tensor_names=["m/kept", "m/texts"],
        shape_and_slices=["", ""],
        tensors=[tf.constant([7, 8]), texts],
    )
    return prefix


def test_tensorflow_and_the_bridge_read_what_was_added(prefix: str) -> None:
    append_tensors(prefix, {key: new_tensor(value) for key, value in VALUES.items()})
    bundle, reader = TensorBundle(prefix), tf.train.load_checkpoint(prefix)
    assert reader.get_variable_to_shape_map().keys() == {*VALUES, "m/kept", "m/texts"}
    assert list(bundle.entries) == sorted([*VALUES, "m/kept", "m/texts"])
    for key, value in VALUES.items():
        np.testing.assert_array_equal(reader.get_tensor(key), value, strict=True)
        assert bundle.entries[key].shape == value.shape
        assert bundle.read(key) == value.tobytes()
    assert reader.get_tensor("m/kept").tolist() == [7, 8]
    assert reader.get_tensor("m/texts").tolist() == [b"a", b"longer"]


def test_the_index_is_the_one_that_tensorflow_writes(prefix: str, tmp_path: Path) -> None:
    """Byte for byte, in several blocks, if tensors are in the same order as in the index."""
    names = [f"n/{'block' * 40}_{i:04}/kernel" for i in range(1_400)]
    arrays = [np.array(i, np.int32) for i in range(len(names))]
    append_tensors(prefix, {n: new_tensor(a) for n, a in zip(names, arrays, strict=True)})
    tf.raw_ops.SaveV2(
        prefix=str(tmp_path / "whole"),
        tensor_names=["m/kept", "m/texts", *names],
        shape_and_slices=[""] * (len(names) + 2),
        tensors=[tf.constant([7, 8]), tf.constant([b"a", b"longer"]), *map(tf.constant, arrays)],
    )
    ours, theirs = TensorBundle(prefix), TensorBundle(tmp_path / "whole")
    assert ours.raw == theirs.raw
    reader = tf.train.load_checkpoint(prefix)
    for i in (0, 15, 16, 1_399):
        assert reader.get_tensor(names[i]) == i


def test_another_size_than_announced_is_refused(prefix: str) -> None:
    array = np.ones(3, np.float32)
    message = (
        "n/w changed its size while it was written: expected float32\\[3\\] of 12 bytes, got "
        "24. Save weights that do not change, or copies."
    )
    with pytest.raises(SavingError, match=message):
        append_tensors(prefix, {"n/w": new_tensor(array, times=2)})


def test_a_damaged_index_is_refused(prefix: str) -> None:
    index = Path(f"{prefix}.index")
    index.write_bytes(index.read_bytes()[:-9])
    with pytest.raises(FileFormatError, match=r"variables\.index cannot be read"):
        append_tensors(prefix, {"n/w": new_tensor(np.ones(3))})
