"""Functions over flat arguments: with 4-bit values as int8 at the boundary, and the VJP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend as jex
import numpy as np

from jax2tf_bridge.from_jax._avals import cotangent_spec, is_narrow, portable_aval


def flat_function(traced: jax.stages.Traced) -> Callable[..., list[Any]]:
    """The traced function over its flat arguments; calling it does not run the user's code."""
    function: Callable[..., list[Any]] = jex.core.jaxpr_as_fun(traced.jaxpr)
    return function


def flat_specs(traced: jax.stages.Traced) -> list[jax.ShapeDtypeStruct]:
    """The shapes and dtypes of the flat arguments."""
    return [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in traced.jaxpr.in_avals]


def widened(traced: jax.stages.Traced) -> jax.stages.Traced:
    """The trace with int8 in the place of arguments and results that TF's op would misread.

    Gives `traced` itself where there are none, which keeps its shardings and donations.
    """
    ins = [portable_aval(a) for a in traced.jaxpr.in_avals]
    outs = [portable_aval(a) for a in traced.jaxpr.out_avals]
    if not any(map(is_narrow, [*ins, *outs])):
        return traced
    narrow = flat_function(traced)
    specs = flat_specs(traced)

    def wide(*args: Any) -> list[Any]:
        results = narrow(
            *(
                jax.lax.convert_element_type(x, spec.dtype) if is_narrow(aval) else x
                for x, aval, spec in zip(args, ins, specs, strict=True)
            )
        )
        return [
            jax.lax.convert_element_type(y, np.dtype(aval.op_dtype)) if is_narrow(aval) else y
            for y, aval in zip(results, outs, strict=True)
        ]

    wide_specs = [
        jax.ShapeDtypeStruct(spec.shape, np.dtype(aval.op_dtype)) if is_narrow(aval) else spec
        for spec, aval in zip(specs, ins, strict=True)
    ]
    wide.__name__ = traced.fun_name
    return jax.jit(wide).trace(*wide_specs)


def trace_vjp(traced: jax.stages.Traced) -> jax.stages.Traced:
    """The trace of the VJP, over the flat arguments and then one cotangent for each result.

    It gives one cotangent for each flat argument: float0 for those that are not differentiable.
    The user's function is not traced again: its derivative rules are in the jaxpr.
    """
    primal = flat_function(traced)
    specs = flat_specs(traced)
    count = len(specs)

    def vjp(*args: Any) -> Sequence[Any]:
        _, pullback = jax.vjp(primal, *args[:count])
        return tuple(pullback(list(args[count:])))

    vjp.__name__ = f"{traced.fun_name}_vjp"
    cotangents = [cotangent_spec(a) for a in traced.jaxpr.out_avals]
    return jax.jit(vjp).trace(*specs, *cotangents)
