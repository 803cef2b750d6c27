"""Finds functions that JAX can certainly differentiate, without tracing a VJP, which is slow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax

from jax2tf_bridge.from_jax.lowering._tf_gradients import CALLS, custom_rule_source, inner_jaxprs

_SAFE_AT_ALL_SIZES = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "add_any", "square", "integer_pow", "pow"),
        *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sqrt", "rsqrt", "cbrt"),
        *("sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh"),
        *("erf", "erfc", "erf_inv", "abs", "sign", "floor", "ceil", "round", "is_finite"),
        *("max", "min", "clamp", "select_n", "eq", "ne", "lt", "le", "gt", "ge"),
        *("and", "or", "xor", "not", "shift_left", "shift_right_logical"),
        *("convert_element_type", "bitcast_convert_type", "copy", "copy_p"),
        *("real", "imag", "complex", "conj", "stop_gradient", "iota", "one_minus_square"),
        *("dot_general", "reduce_sum", "reduce_max", "reduce_min", "argmax", "argmin"),
        *("reduce_and", "reduce_or"),
        *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims"),
        *("random_bits", "random_seed", "random_wrap", "random_unwrap", "threefry2x32"),
    }
)
"""Primitives whose derivatives compare only sizes that the primitives compare as well."""

_SAFE_AT_FIXED_SIZES = frozenset(
    {
        *("conv_general_dilated", "reduce_window_max", "reduce_window_sum", "concatenate", "pad"),
        *("slice", "split", "rev", "cumsum", "sort", "dynamic_slice", "dynamic_update_slice"),
    }
)
"""Primitives whose derivatives compute sizes along the axes that the primitives work on."""

_JAX_DIRECTORY = Path(jax.__file__).parent


def is_surely_differentiable(jaxpr: Any) -> bool:
    """Returns whether the VJP of a function can certainly be traced without questions about sizes.

    False means unknown: loops, derivatives defined by users, and unknown primitives must be traced
    to find out.

    Args:
      jaxpr: the jaxpr of the function.
    """
    return all(map(_is_sure, getattr(jaxpr, "jaxpr", jaxpr).eqns))


def _is_sure(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    if name in _SAFE_AT_ALL_SIZES:
        return True
    if name in _SAFE_AT_FIXED_SIZES:
        return all(map(_has_only_open_batch, (*equation.invars, *equation.outvars)))
    if name == "gather":
        return _open_axes(equation.invars[0]) == []
    if name == "custom_jvp_call":
        return _JAX_DIRECTORY in Path(custom_rule_source(equation)[1]).parents
    if name == "cond":
        return all(map(is_surely_differentiable, params["branches"]))
    is_loop = name == "scan" and isinstance(params["length"], int)
    if is_loop or (name in CALLS and params.get("policy") is None):
        inner = [*inner_jaxprs(params)]
        return bool(inner) and all(map(is_surely_differentiable, inner))
    return False


def _has_only_open_batch(var: Any) -> bool:
    return _open_axes(var) in ([], [0])


def _open_axes(var: Any) -> list[int]:
    shape = getattr(var.aval, "shape", ())
    return [axis for axis, size in enumerate(shape) if not isinstance(size, int)]
