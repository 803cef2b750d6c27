"""Checks the user's function and arguments, names them, and prepares them for JAX."""

from jax2tf_bridge.from_jax.arguments._types import (
    cotangent_spec,
    is_key,
    is_narrow,
    jax_dtype,
    portable_aval,
    shape_and_dtype,
    static_leaf_hint,
)
from jax2tf_bridge.from_jax.arguments._user_code import (
    AlreadyTraced,
    JaxCallable,
    close_over,
    library_line,
    user_line,
    user_line_of_equation,
    value_note,
)

__all__ = [
    "AlreadyTraced",
    "JaxCallable",
    "close_over",
    "cotangent_spec",
    "is_key",
    "is_narrow",
    "jax_dtype",
    "library_line",
    "portable_aval",
    "shape_and_dtype",
    "static_leaf_hint",
    "user_line",
    "user_line_of_equation",
    "value_note",
]
