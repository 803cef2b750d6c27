"""How two state dicts differ: in keys, and in the shapes and dtypes of their leaves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

from jax2tf_bridge.weights._containers import is_mapping, plain_named_tuple_state
from jax2tf_bridge.weights._descriptions import MOST_LINES, array_text, describe, nearest
from jax2tf_bridge.weights._paths import join_path

Lines: TypeAlias = list[tuple[str, str]]

_KIND = re.compile(r"bool|u?int|b?float|complex")
_NUMBERS = (bool, int, float, complex)
# msgpack has one type for them, which is read as bytes.
_BINARIES = (bytes, bytearray, memoryview)


def differences(expected: Any, state: Any, *, leaves: bool = True) -> Lines:
    """Where, as a path, and how a state differs from the one expected; empty if it does not.

    Args:
      expected: the state of what is to be restored. Leaves are anything with a shape and a dtype
        (also of JAX or TensorFlow, or jax.ShapeDtypeStruct), or numbers of Python.
      state: the state that is given. What is in its arrays is not looked at.
      leaves: whether to compare leaves, not only keys.
    """
    found: Lines = []
    keys: list[str] = []  # to where the walk is
    # A stack of our own: trees may be deeper than Python's recursion.
    stack: list[Iterator[tuple[str, Any, Any]]] = []

    def visit(one: Any, other: Any) -> None:
        texts: list[str] = []
        if isinstance(one, dict):
            texts, pairs = _by_key(one, other)
        elif isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
            # Within what a type's own functions made. msgpack has no tuples, only lists.
            if len(one) != len(other):
                texts = [f"the target has {describe(one)}, the state {describe(other)}"]
            pairs = [(str(i), *p) for i, p in enumerate(zip(one, other, strict=False))]
        else:
            pairs = []
            texts = _leaf_difference(one, other) if leaves else []
        found.extend((join_path(keys), text) for text in texts)
        stack.append(iter(pairs))

    visit(expected, state)
    while stack:
        del keys[len(stack) - 1 :]
        pair = next(stack[-1], None)
        if pair is None:
            stack.pop()
            continue
        keys.append(pair[0])
        visit(*pair[1:])
    return found


def _by_key(one: dict[str, Any], other: Any) -> tuple[list[str], list[tuple[str, Any, Any]]]:
    """How the keys differ, and the pairs with a key in common."""
    old_form = plain_named_tuple_state(other)
    if old_form is not other and set(old_form) == set(one):
        other = old_form
    if not is_mapping(other):
        return [f"the target has {describe(one)}, the state {describe(other)}"], []
    there = dict.fromkeys(other.keys())
    missing = [key for key in one if key not in there]
    extra = [key for key in there if key not in one]
    texts = [
        # What is meant takes time to find, and far fewer lines are shown.
        f"the state lacks {key!r}{nearest(key, extra) if number < MOST_LINES else ''}"
        for number, key in enumerate(missing)
    ]
    texts += [f"the state has {key!r}, which the target lacks" for key in extra]
    return texts, [(key, value, other[key]) for key, value in one.items() if key in there]


def _leaf_difference(one: Any, other: Any) -> list[str]:
    """How the leaf of a state differs from the one expected; empty if it does not."""
    shape, other_shape = _shape(one), _shape(other)
    numbers = [type(leaf) in _NUMBERS for leaf in (one, other)]
    if all(numbers) or shape is None or other_shape is None:
        binaries = type(one) in _BINARIES and type(other) in _BINARIES
        fits = binaries or type(one) is type(other)
    elif any(numbers):
        # A count is a number of Python at first, and an array after the first step under jit.
        fits = shape == other_shape == () and _kind(one) == _kind(other)
    else:
        fits = shape == other_shape and _dtype(one) == _dtype(other)
    return [] if fits else [f"the target has {_text(one)}, the state {_text(other)}"]


def _shape(leaf: Any) -> tuple[Any, ...] | None:
    """The shape of an array or a number; None for what has none."""
    if type(leaf) in _NUMBERS:
        return ()
    if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
        return None
    return tuple(leaf.shape)


def _dtype(leaf: Any) -> Any:
    """The dtype in this machine's byte order: files hold no other."""
    dtype = getattr(leaf.dtype, "as_numpy_dtype", leaf.dtype)  # as TensorFlow has it
    try:
        return np.dtype(dtype).newbyteorder("=")
    except TypeError:
        return dtype  # JAX's own, as those of PRNG keys


def _kind(leaf: Any) -> str:
    """Whether it holds bool, int, float or complex."""
    name = type(leaf).__name__ if type(leaf) in _NUMBERS else str(_dtype(leaf))
    match = _KIND.match(name)
    return match[0].lstrip("u").replace("bfloat", "float") if match else name


def _text(leaf: Any) -> str:
    return describe(leaf) if _shape(leaf) is None or type(leaf) in _NUMBERS else array_text(leaf)
