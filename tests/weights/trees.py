"""Hypothesis strategies for trees of weights, and bitwise comparisons of trees."""

from __future__ import annotations

import string
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import ml_dtypes
import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from jax2tf_bridge.weights import (
    from_state_dict,
    register_serialization_state,
    to_state_dict,
)
from tests.sampling import examples

Tree: TypeAlias = Any

_NUMPY_NAMES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
# Every supported ml_dtypes has the first two rows; others are used if this release has them.
_ML_NAMES = (
    *("bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e4m3fnuz"),
    *("float8_e5m2fnuz", "int4", "uint4"),
    *("float8_e3m4", "float8_e4m3", "float8_e8m0fnu", "int2", "uint2"),
    *("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"),
)
NUMPY_DTYPES = tuple(np.dtype(name) for name in _NUMPY_NAMES)
ML_DTYPES = tuple(np.dtype(getattr(ml_dtypes, n)) for n in _ML_NAMES if hasattr(ml_dtypes, n))
DTYPES = NUMPY_DTYPES + ML_DTYPES
BIG_ENDIAN_DTYPES = tuple(d.newbyteorder(">") for d in NUMPY_DTYPES if d.itemsize > 1)
# Elements that fill a part of their byte: not every byte is one.
_PART_OF_A_BYTE = ("int4", "uint4", "int2", "uint2")


unhurried = settings(
    max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
"""Settings for tests over trees; a busy machine is no failure."""


class Moments(NamedTuple):
    """Named tuple like those of optimizers."""

    count: Any
    mean: Any
    variance: Any


Pair = namedtuple("Pair", ["first", "second"])
Nothing = namedtuple("Nothing", [])
NAMED_TUPLES: tuple[type[Any], ...] = (Moments, Pair, Nothing)


class Box:
    """Object with one part, and a name that its state does not have."""

    def __init__(self, content: Any, name: str = "box") -> None:
        self.content, self.name = content, name


def _restore_box(box: Box, state: Any) -> Box:
    return Box(from_state_dict(box.content, state["content"], name="content"), box.name)


register_serialization_state(Box, lambda box: {"content": to_state_dict(box.content)}, _restore_box)


def _elements(data: bytes, dtype: np.dtype[Any], count: int) -> np.ndarray[Any, Any]:
    """Makes `count` elements with the bits of `data`, if the dtype has such elements."""
    if dtype.kind == "b":
        return np.asarray(np.frombuffer(data, np.uint8, count) % 2 == 1)
    if dtype.name in _PART_OF_A_BYTE:
        bits = int(dtype.name.removeprefix("u").removeprefix("int"))
        signed = 0 if dtype.name.startswith("u") else 1 << (bits - 1)
        values = np.frombuffer(data, np.uint8, count).astype(np.int32) % (1 << bits) - signed
        return np.asarray(values.astype(dtype))
    if dtype.name.startswith(("float4_", "float6_")):
        bits = int(dtype.name.removeprefix("float")[0])
        return (np.frombuffer(data, np.uint8, count) % (1 << bits)).view(dtype)
    return np.frombuffer(data, dtype, count)


@st.composite
def arrays(
    draw: st.DrawFn, dtypes: Sequence[np.dtype[Any]] = DTYPES, max_side: int = 3
) -> np.ndarray[Any, Any]:
    """Draws arrays of every dtype and bit pattern: scalars, empty, in Fortran order, with gaps."""
    dtype = draw(st.sampled_from(list(dtypes)))
    shape = tuple(draw(st.lists(st.integers(0, max_side), max_size=3)))
    count = int(np.prod(shape, dtype=np.int64))
    size = count * dtype.itemsize
    array = _elements(draw(st.binary(min_size=size, max_size=size)), dtype, count).reshape(shape)
    layout = draw(st.sampled_from(["C", "F", "gaps", "backwards"]))
    if layout == "F":
        return np.asfortranarray(array)
    if layout == "gaps" and shape:
        spread = np.zeros((*shape[:-1], 2 * shape[-1]), dtype)
        spread[..., ::2] = array
        return spread[..., ::2]
    if layout == "backwards" and shape:
        return array[::-1]
    return array


big_endian_arrays = arrays(BIG_ENDIAN_DTYPES)
"""Arrays in the other byte order."""

numpy_scalars: st.SearchStrategy[Any] = arrays().map(
    lambda array: array.reshape(-1)[0] if array.size else array.dtype.type(0)
)
"""NumPy scalars of every dtype."""

python_scalars: st.SearchStrategy[Any] = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.none(),
)
"""Values that msgpack has, and complex numbers."""

leaves: st.SearchStrategy[Any] = st.one_of(arrays(), numpy_scalars, python_scalars)

keys: st.SearchStrategy[str] = st.one_of(
    st.text(string.ascii_lowercase + "_0/~.", max_size=4),
    st.text(max_size=3),
    st.sampled_from(["params", "kernel", "0", "1", "name", "fields", "values"]),
)
"""Keys of state dicts, including empty ones, ones with slashes, and numbers."""


def state_dicts(leaf: st.SearchStrategy[Any] = leaves, size: int = 8) -> st.SearchStrategy[Tree]:
    """Draws nested dicts with text keys, like those of to_state_dict; some are empty."""
    nested = st.recursive(leaf, lambda inner: _dicts(keys, inner), max_leaves=size)
    return _dicts(keys, nested)


def trees(leaf: st.SearchStrategy[Any] = leaves, size: int = 8) -> st.SearchStrategy[Tree]:
    """Draws nested dicts, lists, tuples and named tuples, some of them empty, or a leaf."""
    any_key = keys | st.integers(-2, 12)

    def containers(inner: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.one_of(
            _dicts(any_key, inner).filter(_keys_differ_as_text),
            st.lists(inner, max_size=3),
            st.lists(inner, max_size=3).map(tuple),
            st.sampled_from(NAMED_TUPLES).flatmap(
                lambda kind: st.tuples(*[inner] * len(kind._fields)).map(lambda v: kind(*v))
            ),
        )

    return st.recursive(leaf, containers, max_leaves=size)


def _dicts(key: st.SearchStrategy[Any], value: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(key, value, max_size=3)


def _keys_differ_as_text(tree: Mapping[Any, Any]) -> bool:
    return len(set(map(str, tree))) == len(tree)


def same(one: Tree, other: Tree) -> bool:
    """Returns whether two trees have the same types, keys in order, dtypes, shapes and bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, Mapping):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, (np.ndarray, np.generic)):
        alike = one.dtype == other.dtype and one.shape == other.shape
        return bool(alike and one.tobytes() == other.tobytes())
    if isinstance(one, (float, complex)):
        return repr(one) == repr(other)
    return bool(one == other)
