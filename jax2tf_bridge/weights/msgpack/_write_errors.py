"""Errors for values that msgpack does not support: place, value and remedy."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from jax2tf_bridge.errors import SerializationError
from jax2tf_bridge.weights._paths import join_path
from jax2tf_bridge.weights.msgpack import _format
from jax2tf_bridge.weights.msgpack._arrays import is_jax_array

_EXPECTED = (
    "expected dict, list, str, bytes, bool, int, float, complex, None, or arrays and scalars of "
    "NumPy or JAX"
)
_ROOT = "The tree"


def describe_place(keys: Sequence[Any]) -> str:
    """Names the place at these keys, as the start of a sentence.

    >>> describe_place(["params", "layers", 0]), describe_place([])
    ('params/layers/0', 'The tree')
    """
    if not keys:
        return _ROOT
    path = join_path([str(key) for key in keys])
    return path if len(path) <= 200 else f"{path[:100]}...{path[-97:]}"


def describe_key_place(key: Any, around: str) -> str:
    """Names the place of a dict's key; `around` is the dict's place."""
    return f"The key {key!r:.80} of {'the tree' if around == _ROOT else around}"


def make_type_error(place: str, value: Any) -> SerializationError:
    kind = type(value)
    if kind is msgpack.ExtType:
        return SerializationError(
            f"{place} is a msgpack.ExtType of the code {value.code}, with which Flax marks arrays "
            f"and numbers: expected another code than {sorted(_format.CODES)}. Write the "
            "array or number itself."
        )
    is_builtin = kind.__module__ == "builtins"
    name = kind.__qualname__ if is_builtin else f"{kind.__module__}.{kind.__qualname__}"
    plain = next(
        (known for known in (dict, list, str, bytes, bool, int, float) if isinstance(value, known)),
        None,
    )
    if plain is not None:
        fix = f"It is a subclass of {plain.__name__}, which is lost in a file: write a plain one."
    elif place.startswith("The key "):
        fix = "Use to_bytes or write_weights, which write keys as str."
    elif hasattr(kind, "to_pure_dict"):
        fix = "Write flax.nnx.to_pure_dict of it; flax.nnx.replace_by_pure_dict takes that back."
    elif isinstance(value, tuple):
        fix = "Write a list, or use to_bytes or write_weights, which write tuples as dicts."
    else:
        fix = (
            "Convert it, or register its type with register_serialization_state and use to_bytes "
            "or write_weights."
        )
    return SerializationError(f"{place} has the type {name}: {_EXPECTED}. {fix}")


def make_range_error(place: str, value: Any, error: Exception) -> SerializationError:
    """Makes an error for a value outside of msgpack's range."""
    if isinstance(value, int):
        return SerializationError(
            f"{place} is the int {hex(value):.40}: expected -2**63 to 2**64 - 1. Write it as a "
            "str, or as a float."
        )
    if isinstance(error, UnicodeError):
        return SerializationError(
            f"{place} is a str with a surrogate, which UTF-8 cannot encode: expected text. Write "
            "it as bytes: text.encode('utf-8', 'surrogatepass')."
        )
    return SerializationError(
        f"{place} is a {type(value).__name__} that msgpack cannot hold: {error}. Convert it."
    )


def check_array(place: Callable[[], str], array: Any) -> None:
    """Raises an error if the elements of a NumPy or JAX array are not accessible."""
    if type(array) is np.ndarray:
        return
    if is_jax_array(array):
        problem = _problem_of_jax_array(array)
        if problem is not None:
            raise SerializationError(f"{place()} {problem}")
    elif isinstance(array, np.ma.MaskedArray):
        raise SerializationError(
            f"{place()} is a masked array, whose mask would be lost: expected a plain one. Write "
            "array.filled(value), or data and mask as two arrays."
        )


def _problem_of_jax_array(array: Any) -> str | None:
    if not isinstance(array.dtype, np.dtype):
        return (
            f"is a JAX array of {array.dtype}, which NumPy has no dtype for: expected numbers. For "
            "PRNG keys, write jax.random.key_data(keys), and restore them with "
            "jax.random.wrap_key_data."
        )
    jax: Any = sys.modules["jax"]
    try:
        deleted, whole = array.is_deleted(), array.is_fully_addressable
    except jax.errors.ConcretizationTypeError:
        return (
            "is an array that JAX is tracing: expected one with values. Write outside of jax.jit, "
            "jax.grad and the like."
        )
    if deleted:
        return (
            "is a JAX array that was deleted or donated: expected one with values. Write it before "
            "that, or write the result of the function that it was donated to."
        )
    if not (whole or array.is_fully_replicated):
        return (
            "is a JAX array with parts on devices of other processes: expected a fully addressable "
            "one. Gather it with jax.experimental.multihost_utils.process_allgather, or replicate "
            "it."
        )
    return None


def make_dtype_error(place: str, array: Any) -> SerializationError:
    dtype: np.dtype[Any] = array.dtype
    if place.startswith("The key "):
        fix = "Use to_bytes or write_weights, which write keys as str."
    elif dtype.kind in "USTa":
        fix = "Write array.tolist()."
    elif dtype.hasobject:
        fix = "Write array.tolist(), or array.astype of a dtype of numbers."
    elif dtype.names is not None:
        fix = "Write a dict of its fields: {name: array[name] for name in array.dtype.names}."
    else:
        fix = "Write array.view(numpy.uint8), or array.astype of a dtype of numbers."
    return SerializationError(
        f"{place} has the dtype {dtype!s:.80}, which could be written but not read: expected bool, "
        "integers, floats, complex, times, or a dtype of ml_dtypes that is installed here. "
        f"{fix}"
    )
