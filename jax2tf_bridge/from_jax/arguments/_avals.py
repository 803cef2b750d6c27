"""JAX's abstract values, and those of a portable function."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from jax2tf_bridge.from_jax._symbols import dim_from_jax
from jax2tf_bridge.portable import WIDENED, Aval, MemorySpace
from shape_poly import Dim

# A ShapeDtypeStruct has none.
_MEMORY_SPACES: dict[str, MemorySpace] = {"Device": "device", "Host": "host", "Any": "any"}


def portable_aval(aval: Any, shape: tuple[Dim, ...] | None = None) -> Aval:
    """Converts a JAX aval or ShapeDtypeStruct; `shape` takes the place of its own."""
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
    """Returns whether values have fewer than 8 bits; TF's op passes them as wider ones."""
    return aval.dtype in WIDENED
