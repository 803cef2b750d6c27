"""Decides whether JAX can differentiate a function, and whether TensorFlow agrees."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

from jax2tf_bridge._operations import SAME_GRADIENT
from jax2tf_bridge.from_jax.source_lines import iter_equations

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
    """
    return all(map(_has_safe_derivative, jaxpr.eqns))


_NO_DERIVATIVE = (
    "Reverse-mode differentiation does not work for",
    "Differentiation rule for",
    "Transpose rule (for reverse-mode differentiation) for",
)
"""Beginnings of JAX's errors for operations without a derivative."""


def has_no_derivative(jaxpr: Any, error: Exception) -> bool:
    """Returns whether an error of tracing the VJP occurs at all sizes.

    Such a VJP need not be traced again at concrete sizes. After other errors, concrete sizes decide
    whether the gradient is missing.

    JAX can differentiate a loop over a size if the size is a number, so this is False for every
    function that computes with sizes.
    """
    return str(error).startswith(_NO_DERIVATIVE) and not any(
        equation.primitive.name == "dim_as_value" for equation in iter_equations(jaxpr)
    )


def _has_safe_derivative(equation: Any) -> bool:
    name, params = equation.primitive.name, equation.params
    if name in _SAFE_AT_ALL_SIZES:
        return True
    if name in _SAFE_AT_FIXED_SIZES:
        variables = (*equation.invars, *equation.outvars)
        return all(_open_axes(var) in ([], [0]) for var in variables)
    if name == "gather":
        return _open_axes(equation.invars[0]) == []
    if name == "custom_jvp_call":
        return _JAX_DIRECTORY in Path(find_custom_rule(equation)[1]).parents
    if name == "cond":
        return all(map(is_surely_differentiable, params["branches"]))
    is_loop = name == "scan" and isinstance(params["length"], int)
    if is_loop or (name in CALLS and params.get("policy") is None):
        inner = _list_called_jaxprs(params)
        return bool(inner) and all(map(is_surely_differentiable, inner))
    return False


def _open_axes(var: Any) -> list[int]:
    shape = getattr(var.aval, "shape", ())
    return [axis for axis, size in enumerate(shape) if not isinstance(size, int)]


_SAME_GRADIENT_IN_TENSORFLOW = SAME_GRADIENT | {"copy", "copy_p"}
"""Primitives whose TensorFlow operations, if any, have JAX's derivatives of any order."""

CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"})
"""Primitives that only call a jaxpr."""

_RULE_OF_RELU = ("relu", "/jax/_src/nn/functions.py")
"""Name and file of jax.nn.relu's derivative rule; like tf.nn.relu, it is 0 at 0."""


def has_jax_gradient_in_tensorflow(jaxpr: Any, needed_results: list[bool] | None = None) -> bool:
    """Returns whether TensorFlow's gradient of the function's operations equals JAX's.

    False for user-defined derivatives (jax.custom_jvp, jax.custom_vjp), loops, sorting, and other
    operations with a different gradient in TensorFlow. Operations behind stop_gradient and on
    integers are ignored, and so are those that only lead to results that are not needed. By default
    all results are needed.
    """
    outs = jaxpr.outvars
    flags = [True] * len(outs) if needed_results is None else needed_results
    needed = _select_differentiable(itertools.compress(outs, flags))
    for equation in reversed(jaxpr.eqns):
        needed_outputs = [var in needed for var in equation.outvars]
        if not any(needed_outputs):
            continue
        name = equation.primitive.name
        inner = _list_called_jaxprs(equation.params)
        if name in CALLS and inner:
            if not all(has_jax_gradient_in_tensorflow(j, needed_outputs) for j in inner):
                return False
        elif _has_narrow_floats(equation) or not (
            _has_same_gradient(equation) or _is_relu(equation) or _is_plain_convolution(equation)
        ):
            return False
        if name != "stop_gradient":
            needed |= _select_differentiable(equation.invars)
    return True


def _select_differentiable(values: Iterable[Any]) -> set[Any]:
    return {v for v in values if not isinstance(v, Literal) and _is_differentiable(v)}


def _has_same_gradient(equation: Any) -> bool:
    name = equation.primitive.name
    # At a pole TensorFlow's gradient is NaN; JAX's is infinite.
    has_pole = name == "integer_pow" and equation.params["y"] < -1
    return (
        name in _SAME_GRADIENT_IN_TENSORFLOW
        and not has_pole
        and not (_promises_in_bounds(equation) and _has_false_promises())
    )


def _promises_in_bounds(equation: Any) -> bool:
    return bool(equation.params.get("mode") == lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@functools.cache
def _has_false_promises() -> bool:
    """Returns whether the installed JAX promises that every vmap of dynamic_slice is in bounds.

    JAX 0.8 does. For a slice out of bounds, JAX then drops the gradient, while TensorFlow passes it
    to the elements that were read.
    """
    x, starts = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)
    sliced = jax.vmap(lambda x, start: lax.dynamic_slice(x, (start,), (2,)))
    equations = jax.make_jaxpr(sliced)(x, starts).jaxpr.eqns
    return any(map(_promises_in_bounds, equations))


def _has_narrow_floats(equation: Any) -> bool:
    # TensorFlow 2.15 casts 8-bit floats without a gradient.
    values = filter(_is_differentiable, (*equation.invars, *equation.outvars))
    return any(value.aval.dtype.itemsize < 2 for value in values)


def _is_relu(equation: Any) -> bool:
    if equation.primitive.name != "custom_jvp_call":
        return False
    name, file = _RULE_OF_RELU
    function, place = find_custom_rule(equation)
    return function == name and file in place.replace("\\", "/")


def find_custom_rule(equation: Any) -> tuple[str, str]:
    """Returns name and place ("file:line") of a function with a custom derivative."""
    inner = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)
    source = str(getattr(getattr(inner, "debug_info", None), "func_src_info", ""))
    function, _, place = source.partition(" at ")
    return function, place


def _is_plain_convolution(equation: Any) -> bool:
    """Returns whether TensorFlow has CPU gradients for the operation of a convolution.

    It has none for Conv2D with groups or with dilated kernels, but it has one for
    DepthwiseConv2dNative.
    """
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    strides, groups = params["window_strides"], params["feature_group_count"]
    if params["batch_group_count"] != 1:
        return False
    if len(strides) not in (1, 2):
        return True  # lowered to one convolution per group, with zeros in dilated kernels
    kernel = equation.invars[1].aval.shape
    is_depthwise = kernel[params["dimension_numbers"].rhs_spec[1]] == 1 and len(set(strides)) == 1
    return all(d == 1 for d in params["rhs_dilation"]) and (groups == 1 or is_depthwise)


def _list_called_jaxprs(params: Mapping[str, Any]) -> list[Any]:
    """Lists the jaxpr that an equation with one of CALLS, or a loop, runs."""
    return [params[key] for key in ("jaxpr", "call_jaxpr") if key in params]


def _is_differentiable(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
