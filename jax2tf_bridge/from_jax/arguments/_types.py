"""Shapes, dtypes and abstract values of arguments."""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import numpy as np

from jax2tf_bridge._dtypes import WIDENED
from jax2tf_bridge.errors import DTypeError
from jax2tf_bridge.from_jax._symbols import dim_from_jax
from jax2tf_bridge.portable import Aval, MemorySpace
from shape_poly import Dim


def shape_and_dtype(leaf: Any, path: str) -> tuple[tuple[Any, ...], Any]:
    """Returns the shape of an argument, and its dtype in JAX (64 bits only with x64).

    Raises:
      DTypeError: it is not an array, or JAX has no such dtype.
    """
    if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
        try:
            leaf = jax.typeof(leaf)
        except TypeError as e:
            raise DTypeError(
                f"The argument {path} must be an array, a scalar or a ShapeDtypeStruct. "
                f"Got: {leaf!r} of type {type(leaf).__name__}{static_leaf_hint(leaf, path)}"
            ) from e
    return tuple(leaf.shape), jax_dtype(leaf.dtype, path)


def static_leaf_hint(leaf: Any, path: str) -> str:
    """Returns advice for a leaf of a model that is not an array, such as its activation.

    The text continues a message without a full stop; "" for any other leaf.

    >>> static_leaf_hint(None, "model.bias"), static_leaf_hint(len, "model.activation")[:25]
    ('', '. Close over model, or pa')
    >>> static_leaf_hint(len, "activation")
    '. Close over activation.'
    """
    if not (callable(leaf) or isinstance(leaf, str)):
        return ""
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    if name == path:
        return f". Close over {name}."
    return (
        f". Close over {name}, or pass its arrays alone: with Equinox by arrays, static = "
        f"eqx.partition({name}, eqx.is_array), and eqx.combine(arrays, static) in the function."
    )


def jax_dtype(dtype: Any, path: str, *, shown: str | None = None) -> Any:
    """Converts a dtype to the dtype that JAX uses for it; messages call it `shown`.

    Raises:
      DTypeError: JAX has no such dtype.
    """
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        if is_key(dtype):
            return dtype
    elif dtype == jax.dtypes.float0:
        return dtype
    else:
        canonical = jax.dtypes.canonicalize_dtype(np.dtype(dtype))
        if _is_known_to_jax(canonical):
            return canonical
    raise DTypeError(
        f"The argument {path} has dtype {shown or dtype}, which JAX does not have. "
        f"Convert it to numbers before the JAX function{_advise_conversion(dtype)}."
    )


def _advise_conversion(dtype: Any) -> str:
    """Returns advice to convert an array of a dtype that JAX lacks; "" if there is none."""
    if np.dtype(dtype).kind in "SUO":
        return ", in TensorFlow for instance with tf.strings.to_number or a table of tf.lookup"
    if np.dtype(dtype).kind in "mM":
        return ", for instance with x.astype(np.int64)"
    return ", for instance with x.astype(np.float32)" if np.dtype(dtype).kind in "fc" else ""


_WIDEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}
"""Size in bytes of JAX's widest standard dtype of each kind."""


@functools.cache
def _is_known_to_jax(dtype: np.dtype[Any]) -> bool:
    if dtype.isbuiltin == 1:
        return dtype.itemsize <= _WIDEST.get(dtype.kind, 0)
    try:
        jax.eval_shape(lambda: jax.numpy.zeros((), dtype))
    except TypeError:
        return False
    return True


# A ShapeDtypeStruct has no memory space.
_MEMORY_SPACES: dict[str, MemorySpace] = {"Device": "device", "Host": "host", "Any": "any"}


def portable_aval(aval: Any, shape: tuple[Dim, ...] | None = None) -> Aval:
    """Converts a JAX aval or ShapeDtypeStruct to an Aval with the shape `shape`."""
    if shape is None:
        shape = tuple(dim_from_jax(d) for d in aval.shape)
    space = _MEMORY_SPACES.get(getattr(getattr(aval, "memory_space", None), "name", ""), "device")
    if not is_key(aval.dtype):
        weak = bool(getattr(aval, "weak_type", False))
        return Aval(shape, _dtype_name(aval.dtype), memory_space=space, weak_type=weak)
    words = jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct((), aval.dtype))
    return Aval(shape, str(aval.dtype), tuple(words.shape), space)


def is_key(dtype: Any) -> bool:
    """Returns whether a dtype is that of typed PRNG keys."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def _dtype_name(dtype: Any) -> str:
    return "float0" if dtype == jax.dtypes.float0 else np.dtype(dtype).name


def cotangent_spec(aval: Any) -> jax.ShapeDtypeStruct:
    """Returns shape and dtype of a value's cotangent: float0 unless it is differentiable."""
    inexact = jax.dtypes.issubdtype(aval.dtype, np.inexact)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype if inexact else jax.dtypes.float0)


def is_narrow(aval: Aval) -> bool:
    """Returns whether values have fewer than 8 bits; TF's op passes them in a wider dtype."""
    return aval.dtype in WIDENED
