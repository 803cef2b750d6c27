"""Tells functions whose operations TensorFlow differentiates as JAX does."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Literal

_AGREEING = frozenset(
    {
        *("add", "sub", "mul", "div", "neg", "add_any", "square", "integer_pow"),
        *("exp", "exp2", "log", "log1p", "expm1", "tanh", "logistic", "sin", "cos", "erf"),
        *("rsqrt", "dot_general", "reduce_sum", "reduce_max"),
        *("broadcast_in_dim", "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev"),
        *("concatenate", "pad", "convert_element_type", "copy", "copy_p", "select_n", "split"),
        *("gather", "dynamic_slice", "cumsum", "real", "imag", "complex", "conj"),
        *("abs", "stop_gradient"),
    }
)
"""Primitives of which TensorFlow's operations have the same derivative, of any order, at ties and
kinks too. At a pole of rsqrt TensorFlow gives 0 where no cotangent comes, and JAX NaN: sqrt is left
out for that. tests/to_tf compare each with JAX."""

CALLS = frozenset({"jit", "pjit", "closed_call", "core_call", "remat", "remat2", "checkpoint"})
"""Primitives that call a jaxpr, and do nothing else."""

_RULE_OF_RELU = ("relu", "/jax/_src/nn/functions.py")
"""Name and file of the rule of jax.nn.relu: its derivative at 0 is 0, as tf.nn.relu's."""

_STOPS = "stop_gradient"


def tensorflow_differentiates(jaxpr: Any) -> bool:
    """Tells whether TensorFlow's gradient of the function's operations is JAX's.

    A derivative that the user gave (jax.custom_jvp, jax.custom_vjp), loops, sorting, and what else
    TensorFlow differentiates in another way make it false; what lies behind stop_gradient, or is
    made of integers, does not count.

    Args:
      jaxpr: of the function.
    """
    return _agrees(getattr(jaxpr, "jaxpr", jaxpr), None)


def _agrees(jaxpr: Any, needed_results: list[bool] | None) -> bool:
    """Goes back from the results, as a gradient does; `needed_results` says from which."""
    outs = jaxpr.outvars
    wanted = [True] * len(outs) if needed_results is None else needed_results
    needed = {
        var
        for var, is_wanted in zip(outs, wanted, strict=True)
        if is_wanted and not isinstance(var, Literal) and _is_differentiable(var)
    }
    for equation in reversed(jaxpr.eqns):
        asked = [var in needed for var in equation.outvars]
        if not any(asked):
            continue
        name = equation.primitive.name
        inner = [*inner_jaxprs(equation.params)]
        if name in CALLS and inner:
            if not all(_agrees(jaxpr, asked) for jaxpr in inner):
                return False
        elif _has_narrow_floats(equation) or not (
            _is_alike(equation) or _is_relu(equation) or _is_plain_convolution(equation)
        ):
            return False
        if name == "convert_element_type" and any(
            map(_is_of_8_bits, (*equation.invars, *equation.outvars))
        ):
            return False
        if name != _STOPS:
            needed |= {
                var
                for var in equation.invars
                if not isinstance(var, Literal) and _is_differentiable(var)
            }
    return True


def _is_alike(equation: Any) -> bool:
    name = equation.primitive.name
    # Of a pole TensorFlow makes NaN, where JAX has an infinity.
    has_pole = name == "integer_pow" and equation.params["y"] < -1
    return name in _AGREEING and not has_pole and not (_promises(equation) and _breaks_promises())


def _promises(equation: Any) -> bool:
    return bool(equation.params.get("mode") == lax.GatherScatterMode.PROMISE_IN_BOUNDS)


@functools.cache
def _breaks_promises() -> bool:
    """Tells whether the installed JAX says of any vmap of dynamic_slice that it stays in bounds.

    JAX 0.8 does. Where it does not stay there, JAX's gradient goes nowhere then, and TensorFlow's
    to where the value came from.
    """
    x, starts = np.zeros((2, 3), np.float32), np.zeros(2, np.int32)
    sliced = jax.vmap(lambda x, start: lax.dynamic_slice(x, (start,), (2,)))
    equations = jax.make_jaxpr(sliced)(x, starts).jaxpr.eqns
    return any(map(_promises, equations))


def _has_narrow_floats(equation: Any) -> bool:
    """Tells whether floats of 8 bits are differentiated, whose casts have no gradient."""
    values = filter(_is_differentiable, (*equation.invars, *equation.outvars))
    return any(value.aval.dtype.itemsize < 2 for value in values)


def _is_relu(equation: Any) -> bool:
    if equation.primitive.name != "custom_jvp_call":
        return False
    name, file = _RULE_OF_RELU
    function, place = custom_rule_source(equation)
    return function == name and file in place.replace("\\", "/")


def custom_rule_source(equation: Any) -> tuple[str, str]:
    """Returns name and place ("file:line") of the function that has a derivative of its own."""
    inner = getattr(equation.params.get("call_jaxpr"), "jaxpr", None)
    source = str(getattr(getattr(inner, "debug_info", None), "func_src_info", ""))
    function, _, place = source.partition(" at ")
    return function, place


def _is_plain_convolution(equation: Any) -> bool:
    """Tells convolutions that become an operation for which TensorFlow has gradients on CPUs.

    It has none of Conv2D with groups, but of DepthwiseConv2dNative, nor with dilated kernels.
    """
    if equation.primitive.name != "conv_general_dilated":
        return False
    params = equation.params
    strides, groups = params["window_strides"], params["feature_group_count"]
    if params["batch_group_count"] != 1:
        return False
    if len(strides) not in (1, 2):  # by single groups, and a kernel with zeros in it
        return True
    kernel = equation.invars[1].aval.shape
    is_depthwise = kernel[params["dimension_numbers"].rhs_spec[1]] == 1 and len(set(strides)) == 1
    return all(d == 1 for d in params["rhs_dilation"]) and (groups == 1 or is_depthwise)


def inner_jaxprs(params: Mapping[str, Any]) -> Iterator[Any]:
    """Yields the jaxpr that an equation of one of CALLS calls, or repeats."""
    for key in ("jaxpr", "call_jaxpr"):
        if key in params:
            yield getattr(params[key], "jaxpr", params[key])


def _is_of_8_bits(var: Any) -> bool:
    """Tells floats that TensorFlow 2.15 casts without a gradient."""
    return _is_differentiable(var) and var.aval.dtype.itemsize == 1


def _is_differentiable(var: Any) -> bool:
    dtype = getattr(var.aval, "dtype", None)
    return dtype is not None and bool(jnp.issubdtype(dtype, jnp.inexact))
