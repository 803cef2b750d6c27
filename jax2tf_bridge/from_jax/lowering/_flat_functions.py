"""Functions over flat arguments: tracing with int8 in place of narrow dtypes, and the VJP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.extend as jex
import numpy as np

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import cotangent_spec, is_narrow, portable_aval

VjpShardings: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]] | None
"""Shardings of the arguments and of the results of a VJP; None if it is not sharded."""


def flat_function(traced: jax.stages.Traced) -> Callable[..., list[Any]]:
    """Returns a trace as a function over flat arguments; it does not run the user's code."""
    function: Callable[..., list[Any]] = jex.core.jaxpr_as_fun(traced.jaxpr)
    return function


def flat_specs(traced: jax.stages.Traced) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of the flat arguments, and the shardings in their types."""
    return [_spec(aval, aval.dtype) for aval in traced.jaxpr.in_avals]


def _spec(aval: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    # With explicit mesh axes, the sharding is part of the type.
    sharding = getattr(aval, "sharding", None)
    explicit = sharding is not None and any(axis is not None for axis in sharding.spec)
    return jax.ShapeDtypeStruct(aval.shape, dtype, sharding=sharding if explicit else None)


def trace_with_wide_dtypes(traced: jax.stages.Traced) -> jax.stages.Traced:
    """Traces with int8 in place of the narrow arguments and results that TF's op would misread.

    Returns `traced` itself if there are none, which keeps its shardings and donations. But if a
    user's argument type fails when JAX rebuilds the arguments, it traces again over flat arguments.
    """
    ins = [portable_aval(a) for a in traced.jaxpr.in_avals]
    outs = [portable_aval(a) for a in traced.jaxpr.out_avals]
    if not any(map(is_narrow, [*ins, *outs])) and _can_rebuild_arguments(traced):
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
        _spec(traced_aval, np.dtype(aval.op_dtype)) if is_narrow(aval) else spec
        for traced_aval, spec, aval in zip(traced.jaxpr.in_avals, specs, ins, strict=True)
    ]
    wide.__name__ = traced.fun_name
    shardings: dict[str, Any] = {
        name: tuple(values) if name == "in_shardings" else list(values)
        for name, values in _jax_compat.jit_shardings(traced).items()
    }
    return jax.jit(wide, **shardings).trace(*wide_specs)


def _can_rebuild_arguments(traced: jax.stages.Traced) -> bool:
    """Returns whether JAX can rebuild the arguments in their own types, as lowering does."""
    try:
        return traced.args_info is not None
    except Exception:  # raised by a constructor of the user
        return False


def out_structure(traced: jax.stages.Traced) -> Any:
    """Returns the tree structure of the results, if possible without constructing their types."""
    structure = getattr(traced, "out_tree", None)  # not in JAX 0.8
    return jax.tree_util.tree_structure(traced.out_info) if structure is None else structure


def trace_vjp(traced: jax.stages.Traced, shardings: VjpShardings = None) -> jax.stages.Traced:
    """Traces the VJP, which takes the flat arguments and then one cotangent for each result.

    The VJP returns one cotangent for each flat argument, float0 for those that are not
    differentiable. The user's function is not traced again, because the jaxpr has its derivative
    rules. `shardings` comes from `vjp_shardings`.
    """
    primal = flat_function(traced)
    specs = flat_specs(traced)
    count = len(specs)

    def vjp(*args: Any) -> Sequence[Any]:
        _, pullback = jax.vjp(primal, *args[:count])
        return tuple(pullback(list(args[count:])))

    vjp.__name__ = f"{traced.fun_name}_vjp"
    cotangents = [_spec(aval, cotangent_spec(aval).dtype) for aval in traced.jaxpr.out_avals]
    if shardings is None:
        return jax.jit(vjp).trace(*specs, *cotangents)
    ins, outs = shardings
    return jax.jit(vjp, in_shardings=ins, out_shardings=outs).trace(*specs, *cotangents)
