"""Pairs of elementwise operations: TensorFlow's graph optimizer rewrites operations by twos."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jax2tf_bridge import Target, export
from jax2tf_bridge.portable import PortableFunction

_Function = Callable[..., Any]

_EVERY: Mapping[str, _Function] = {
    "stack": lambda x, y: jnp.stack([x, x]).reshape(-1),
    "stack of both": lambda x, y: jnp.stack([x, y]).reshape(-1),
    "tile": lambda x, y: jnp.tile(x, 2),
    "reverse": lambda x, y: jnp.flip(x),
    "select": lambda x, y: jnp.where(x == y, x, y[::-1]),
}
_NUMBERS: Mapping[str, _Function] = {
    "add": lambda x, y: x + y,
    "add twice": lambda x, y: x + y + y,
    "subtract": lambda x, y: x - y,
    "subtract from zero": lambda x, y: jnp.zeros_like(x) - x,
    "multiply": lambda x, y: x * y,
    "multiply by ones": lambda x, y: x * (y - y + 1),
    "square": lambda x, y: lax.square(x),
    "cube": lambda x, y: lax.integer_pow(x, 3),
    "negate": lambda x, y: -x,
    "common factor": lambda x, y: x * y + x * x,
}
_ORDERED: Mapping[str, _Function] = {
    "maximum": jnp.maximum,
    "minimum": jnp.minimum,
    "remainder": lax.rem,
    "absolute": lambda x, y: abs(x),
    "sign": lambda x, y: jnp.sign(x),
}
_INTEGERS: Mapping[str, _Function] = {
    "divide": lax.div,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "exclusive or": lambda x, y: x ^ y,
    "invert": lambda x, y: ~x,
    "shift left": lax.shift_left,
    "shift right": lax.shift_right_logical,
    "shift right with sign": lax.shift_right_arithmetic,
    "power": lambda x, y: x ** (y & 3),
    "count bits": lambda x, y: lax.population_count(x),
    "leading zeros": lambda x, y: lax.clz(x),
}
_CONTINUOUS: Mapping[str, _Function] = {
    "divide": lambda x, y: x / y,
    "reciprocal": lambda x, y: 1 / x,
    "exponential": lambda x, y: jnp.exp(x) - 1,
    "logarithm": lambda x, y: jnp.log(1 + x),
    "square root": lambda x, y: jnp.sqrt(x),
    "inverse root": lambda x, y: lax.rsqrt(x),
    "hyperbolic tangent": lambda x, y: jnp.tanh(x),
    "logistic": lambda x, y: jax.nn.sigmoid(x),
    "power": lambda x, y: x**2.0,
}
_FLAGS: Mapping[str, _Function] = {
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "exclusive or": lambda x, y: x ^ y,
    "invert": lambda x, y: ~x,
}

INTEGERS = ("uint16", "int8", "int16", "int32", "int64", "uint8", "uint32", "uint64")
DTYPES = (
    *INTEGERS,
    *("bool", "bfloat16", "float16", "float32", "float64", "complex64", "complex128"),
)


def _operations(dtype: np.dtype[Any]) -> Mapping[str, _Function]:
    if dtype.kind == "b":
        return {**_EVERY, **_FLAGS}
    if dtype.kind in "iu":
        return {**_EVERY, **_NUMBERS, **_ORDERED, **_INTEGERS}
    if dtype.kind == "c":
        return {**_EVERY, **_NUMBERS, **_CONTINUOUS}
    return {**_EVERY, **_NUMBERS, **_ORDERED, **_CONTINUOUS}


_REWRITTEN = (
    "add",
    "multiply",
    "negate",
    "square",
    "stack",
    "subtract",
    "subtract from zero",
    "tile",
)
"""Operations that the optimizer rewrites into others."""


def _pairs(dtype: np.dtype[Any], every: bool) -> dict[str, _Function]:
    """Applies each operation to results of each; a pair shares no tensors with others.

    The optimizer merges equal operations, and rewrites some only if nothing else takes them.
    """
    operations = _operations(dtype)
    if not every:
        operations = {name: operations[name] for name in _REWRITTEN}

    def pair(first: _Function, second: _Function) -> _Function:
        return lambda x, y: second(first(x, y), first(x, y))

    return {
        f"{second} of {first}": pair(operations[first], operations[second])
        for first in operations
        for second in operations
    }


def arguments(
    dtype_name: str, *, every: bool = True
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns two arrays with a row of three numbers for each pair."""
    dtype = jnp.dtype(dtype_name)
    count = len(_pairs(dtype, every))
    rows = ([1, 2, 1], [1, 1, 3])
    x, y = (np.tile(np.array(row).astype(dtype), (count, 1)) for row in rows)
    return x, y


def portable(dtype_name: str, *, every: bool = True) -> PortableFunction:
    """Exports all pairs of a dtype as one function; its results are named after the pairs."""
    pairs = _pairs(jnp.dtype(dtype_name), every)

    def function(x: Any, y: Any) -> dict[str, Any]:
        return {name: pair(x[i], y[i]) for i, (name, pair) in enumerate(pairs.items())}

    with jax.enable_x64(True):
        return export(function, target=Target.widest(xla=False))(
            *arguments(dtype_name, every=every)
        )


def expected(dtype_name: str, *, every: bool = True) -> dict[str, np.ndarray[Any, Any]]:
    """Computes the pairs in JAX, one operation at a time."""
    with jax.enable_x64(True):
        x, y = (jnp.asarray(array[0]) for array in arguments(dtype_name, every=every))
        pairs = _pairs(jnp.dtype(dtype_name), every)
        return {name: np.asarray(pair(x, y)) for name, pair in pairs.items()}


def differences(results: Mapping[str, Any], exact: Mapping[str, Any]) -> list[str]:
    """Lists the pairs with other results than JAX's; those of floats may be rounded."""
    names = []
    for name, array in exact.items():
        found = np.asarray(results[name])
        if array.dtype.kind in "iub":
            equal = np.array_equal(found, array)
        else:
            wide = np.complex128 if array.dtype.kind == "c" else np.float64
            tolerance = 0.05 if array.dtype.itemsize == 2 else 1e-4
            equal = np.allclose(
                found.astype(wide), array.astype(wide), tolerance, tolerance, equal_nan=True
            )
        if found.dtype != array.dtype or not equal:
            names.append(f"{name}: {found} for {array}")
    return names
