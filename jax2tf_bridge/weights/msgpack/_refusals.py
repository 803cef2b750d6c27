"""What msgpack cannot hold, in words: the place, what is expected, what is there, and the fix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack
import numpy as np

from jax2tf_bridge.weights._array_bytes import is_jax_array, whats_wrong_with
from jax2tf_bridge.weights._paths import join_path
from jax2tf_bridge.weights.msgpack import _format

_HELD = (
    "expected dict, list, str, bytes, bool, int, float, complex, None, or arrays and scalars of "
    "NumPy or JAX"
)


def place(keys: Sequence[Any]) -> str:
    """Where something is, as the beginning of a sentence.

    >>> place(["params", "layers", 0]), place([])
    ('What is at params/layers/0', 'The tree')
    """
    if not keys:
        return "The tree"
    path = join_path([str(key) for key in keys])
    return f"What is at {path if len(path) <= 200 else f'{path[:100]}...{path[-97:]}'}"


def key_of(key: Any, around: str) -> str:
    """As `place`, of a dict's key."""
    where = "the tree" if around == "The tree" else around.removeprefix("What is at ")
    return f"The key {key!r:.80} of {where}"


def of_type(place: str, value: Any) -> str:
    """A type without a form of its own."""
    kind = type(value)
    if kind is msgpack.ExtType:
        return (
            f"{place} is a msgpack.ExtType of the code {value.code}, with which Flax marks arrays "
            f"and numbers: expected another code than {sorted(_format.EXTENSIONS)}. Write the "
            "array or number itself."
        )
    name = kind.__qualname__ if kind.__module__ == "builtins" else _full_name(kind)
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
            "Convert it, or tell how with register_serialization_state and use to_bytes or "
            "write_weights."
        )
    return f"{place} has the type {name}: {_HELD}. {fix}"


def unpackable(place: str, value: Any, error: Exception) -> str:
    """A value that msgpack has no room for, though it has for its type."""
    if isinstance(value, int):
        return (
            f"{place} is the int {hex(value):.40}: expected -2**63 to 2**64 - 1. Write it as a "
            "str, or as a float."
        )
    if isinstance(error, UnicodeError):
        return (
            f"{place} is a str with a surrogate, which UTF-8 has not: expected text. Write it as "
            "bytes: text.encode('utf-8', 'surrogatepass')."
        )
    return f"{place} is no {type(value).__name__} that msgpack holds: {error}. Convert it."


def of_array(place: Callable[[], str], value: Any) -> str | None:
    """An array of which the elements cannot be had; None if they can."""
    if type(value) is np.ndarray:
        return None
    if is_jax_array(value):
        problem = whats_wrong_with(value)
        return None if problem is None else f"{place()} {problem}"
    if isinstance(value, np.ma.MaskedArray):
        return (
            f"{place()} is a masked array, of which the mask would be lost: expected a plain one. "
            "Write array.filled(value), or data and mask as two arrays."
        )
    return None


def dtype(place: str, array: Any) -> str:
    """An array of a dtype that readers have no name for."""
    found: np.dtype[Any] = array.dtype
    if place.startswith("The key "):
        fix = "Use to_bytes or write_weights, which write keys as str."
    elif found.kind in "USTa":
        fix = "Write array.tolist()."
    elif found.hasobject:
        fix = "Write array.tolist(), or array.astype of a dtype of numbers."
    elif found.names is not None:
        fix = "Write a dict of its fields: {name: array[name] for name in array.dtype.names}."
    else:
        fix = "Write array.view(numpy.uint8), or array.astype of a dtype of numbers."
    return (
        f"{place} has the dtype {found!s:.80}, which could be written but not read: expected bool, "
        "integers, floats, complex, times, or a dtype of ml_dtypes that is installed here. "
        f"{fix}"
    )


def too_large(place: str, size: int) -> str:
    """A binary beyond msgpack's limit."""
    return (
        f"{place} has {size} bytes: expected at most {_format.MAX_ITEM_SIZE}, which is what "
        "msgpack holds in one piece. Write it as a numpy.uint8 array in a dict: that is written in "
        "chunks."
    )


def too_large_array(place: str, size: int) -> str:
    """An array beyond msgpack's limit, where it is not written in chunks."""
    return (
        f"{place} is an array of {size} bytes within a list: expected at most 4 GiB, since only "
        "arrays in dicts are written in chunks. Use a dict for the list, or use to_bytes or "
        "write_weights, which write lists as dicts."
    )


def scattered(place: str) -> str:
    """A memoryview with gaps."""
    return f"{place} is a memoryview that is not contiguous: expected one that is. Write bytes(x)."


def cycle(place: str) -> str:
    """A container within itself."""
    return f"{place} is also around itself: expected a tree. Take the cycle out."


def too_deep(place: str) -> str:
    """More containers within each other than readers take."""
    return (
        f"{place} is more than {_format.MAX_DEPTH} dicts and lists deep: expected no more, since "
        "readers of msgpack take no more. Flatten it: flatten_state makes one dict of paths."
    )


def unordered_keys(place: str, value: dict[Any, Any]) -> str:
    """Keys that cannot be sorted."""
    kinds = sorted({type(key).__name__ for key in value})
    return (
        f"{place} is a dict with keys that have no order, of the types {', '.join(kinds)}: "
        "expected keys that can be sorted. Use one type, or in_place=True, which keeps the dict's "
        "order."
    )


def reserved_key(place: str) -> str:
    """A dict that readers would take for a chunked array."""
    return (
        f"{place} is a dict with the key {_format.CHUNKED_KEY!r}, by which readers know arrays in "
        "chunks: expected other keys. Rename it, or write the array itself."
    )


def not_copied(place: str, error: Exception) -> str:
    """An array of which the elements could not be had after all."""
    return (
        f"{place} is an array that could not be copied to the host: {error!s:.400}. Nothing was "
        "written; jax.block_until_ready(tree) raises the same where the array is made."
    )


def became_smaller(place: str) -> str:
    """An array or a binary that another thread resized."""
    return (
        f"{place} became smaller while it was written: expected a tree that stays as it is. "
        "Nothing was written; write a copy, or write before it is resized."
    )


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
