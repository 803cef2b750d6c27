"""Traces functions.

The user's function is traced at its specs, at concrete sizes, or as jax.vmap of one row. The trace
can be traced again as a function over flat arguments: with int8 for narrow dtypes, or as its VJP.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import numpy as np
from jax.extend.core import jaxpr_as_fun

from jax2tf_bridge.comparing import tolerance_of
from jax2tf_bridge.errors import BridgeError, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import (
    JaxCallable,
    explain_missing_value,
    is_narrow,
    portable_aval,
)
from jax2tf_bridge.from_jax.shapes import (
    POLYMORPHIC,
    ArraySpec,
    RowWise,
    SizeWords,
    Specs,
    TracedFunction,
    explain_shape_as_example,
)
from jax2tf_bridge.from_jax.trees import check_dict_keys
from shape_poly import is_symbolic_dim


def make_traced_function(
    function: JaxCallable, specs: Specs, words: SizeWords = POLYMORPHIC
) -> TracedFunction:
    """Returns an object that traces the function at `specs`; `words` are for messages."""

    def trace(args: Sequence[Any], kwargs: Mapping[str, Any]) -> jax.stages.Traced:
        try:
            traced: jax.stages.Traced = function.jitted.trace(*args, **kwargs)
        except Exception as e:
            if function.is_unbound_module and not _asks_for_sizes(e):
                raise FunctionError(
                    f"{function.name} is a module of Flax without parameters, which cannot be "
                    f"called ({type(e).__name__}). Pass its apply, as model.apply, which takes the "
                    "parameters as its first argument."
                ) from e
            note = explain_missing_value(e, function, specs.names, specs.numbers())
            if note is not None:
                e.add_note(note)
            elif isinstance(e, ValueError) and "pytree dictionary keys" in str(e):
                check_dict_keys(
                    _get_result(function, args, kwargs), "The result", f" of {function.name}"
                )
                e.add_note(
                    f"A dict in {function.name} has keys of several types. JAX sorts the keys of "
                    "dicts; write all of them as strings."
                )
            elif isinstance(e, (TypeError, AttributeError)):
                for name, value in specs.integer_tuples().items():
                    e.add_note(explain_shape_as_example(name, value))
            raise
        return traced

    return TracedFunction(
        function.name,
        specs.variables(),
        lambda assumptions, scope: trace(*specs.arguments_under(assumptions, scope)),
        lambda sizes: trace(*specs.arguments_at(sizes)),
        specs.example(),
        function.source,
        words,
        row_wise=list_row_wise_forms(function, specs),
    )


def _get_result(function: JaxCallable, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Traces a function only for its result, which may be a tree that JAX cannot flatten."""
    result: Any = None

    def keep_result(*args: Any, **kwargs: Any) -> None:
        nonlocal result
        result = function.jitted.__wrapped__(*args, **kwargs)

    static_names = [name for name in function.static_argnames if name in kwargs]
    with contextlib.suppress(Exception):
        jax.jit(
            keep_result,
            static_argnums=sorted(function.static_argnums),
            static_argnames=static_names,
        ).trace(*args, **kwargs)
    return result


def _asks_for_sizes(error: Exception) -> bool:
    return isinstance(
        error, (BridgeError, KeyError, RecursionError, _jax_compat.InconclusiveDimensionOperation)
    )


_ROWS = 3
"""Batch size for comparing the two forms; not 1, because size 1 broadcasts."""

MAX_ELEMENTS = 2**22
"""Maximum number of argument elements for which the two forms are run and compared."""


def list_row_wise_forms(function: JaxCallable, specs: Specs) -> tuple[RowWise, ...]:
    """Lists rewrites of a function with jax.vmap, if its only open size is the leading one.

    They are equivalent to the function if it computes each row independently.
    """
    axes = _find_axes(specs)
    if axes is None or specs.static_args or specs.static_kwargs or specs.dynamic[1]:
        return ()
    call = function.jitted
    name, in_axes = function.code_name, "" if all(a == 0 for a in axes) else f", in_axes={axes}"

    def batch_of_one(*args: Any) -> Any:
        rows = (
            jax.tree_util.tree_map(lambda leaf: leaf[None], arg) if axis == 0 else arg
            for arg, axis in zip(args, axes, strict=True)
        )
        return call(*rows)[0]

    forms = [(f"jax.vmap({name}{in_axes})", call)]
    if all(isinstance(argument, ArraySpec) for argument in specs.dynamic[0]):
        row_args = [f"{n}[None]" if a == 0 else n for n, a in zip(specs.names, axes, strict=True)]
        row = f"lambda {', '.join(specs.names)}: {name}({', '.join(row_args)})[0]"
        forms.append((f"jax.vmap({row}{in_axes})", batch_of_one))
    return tuple(
        _make_form(code, call, jax.jit(jax.vmap(f, in_axes=axes)), specs) for code, f in forms
    )


def _make_form(code: str, call: Any, mapped: Any, specs: Specs) -> RowWise:
    return RowWise(
        code,
        lambda assumptions, scope: mapped.trace(*specs.arguments_under(assumptions, scope)[0]),
        lambda: _agree_on_samples(call, mapped, specs),
    )


def _find_axes(specs: Specs) -> tuple[int | None, ...] | None:
    """Returns in_axes for jax.vmap; None if a size other than the leading one is open."""
    if len(specs.variables()) != 1 or not specs.is_decided:
        return None
    (variable,) = specs.variables()
    axes: list[int | None] = []
    for argument in specs.dynamic[0]:
        open_sizes = [
            [(axis, str(d)) for axis, d in enumerate(leaf.shape) if is_symbolic_dim(d)]
            for leaf in jax.tree_util.tree_leaves(argument)
        ]
        if any(open_sizes) and not all(sizes == [(0, variable)] for sizes in open_sizes):
            return None
        axes.append(0 if any(open_sizes) else None)
    return tuple(axes) if 0 in axes else None


def _agree_on_samples(call: Callable[..., Any], mapped: Callable[..., Any], specs: Specs) -> bool:
    sizes: Mapping[str, int] = dict.fromkeys(specs.variables(), _ROWS)
    arg_specs = specs.arguments_at(sizes)[0]
    if sum(math.prod(spec.shape) for spec in jax.tree_util.tree_leaves(arg_specs)) > MAX_ELEMENTS:
        return False
    rng = np.random.default_rng(0)
    args = jax.tree_util.tree_map(lambda spec: _draw_numbers(spec, rng), arg_specs)
    expected, actual = (jax.tree_util.tree_leaves(f(*args)) for f in (call, mapped))
    return len(expected) == len(actual) and all(map(_is_close, expected, actual))


def _is_inexact(spec: Any) -> bool:
    return bool(jax.dtypes.issubdtype(spec.dtype, np.inexact))


def _draw_numbers(spec: Any, rng: np.random.Generator) -> Any:
    if _is_inexact(spec):
        return rng.uniform(0.1, 0.9, spec.shape).astype(spec.dtype)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype)


def _is_close(expected: Any, actual: Any) -> bool:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    tolerance = 10 * tolerance_of(str(expected.dtype))
    return bool(np.allclose(expected, actual, rtol=tolerance, atol=tolerance, equal_nan=True))


VjpShardings: TypeAlias = tuple[tuple[Any, ...], tuple[Any, ...]] | None
"""Shardings of the arguments and of the results of a VJP; None if it is not sharded."""


def make_flat_specs(traced: jax.stages.Traced) -> list[jax.ShapeDtypeStruct]:
    """Returns the shapes and dtypes of the flat arguments, and the shardings in their types."""
    return [_make_spec(aval, aval.dtype) for aval in traced.jaxpr.in_avals]


def _make_spec(aval: Any, dtype: Any) -> jax.ShapeDtypeStruct:
    # With explicit mesh axes, the sharding is part of the type.
    sharding = getattr(aval, "sharding", None)
    explicit = sharding is not None and any(axis is not None for axis in sharding.spec)
    return jax.ShapeDtypeStruct(aval.shape, dtype, sharding=sharding if explicit else None)


def trace_with_wide_dtypes(traced: jax.stages.Traced) -> jax.stages.Traced:
    """Traces with int8 in place of the narrow arguments and results that TF's op would misread.

    If there are none, returns `traced` itself, which keeps its shardings and donations. But if JAX
    cannot rebuild arguments of the user's types, traces again over flat arguments.
    """
    ins = [portable_aval(a) for a in traced.jaxpr.in_avals]
    outs = [portable_aval(a) for a in traced.jaxpr.out_avals]
    if not any(map(is_narrow, [*ins, *outs])) and _can_rebuild_arguments(traced):
        return traced
    narrow = jaxpr_as_fun(traced.jaxpr)
    specs = make_flat_specs(traced)

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
        _make_spec(traced_aval, np.dtype(aval.op_dtype)) if is_narrow(aval) else spec
        for traced_aval, spec, aval in zip(traced.jaxpr.in_avals, specs, ins, strict=True)
    ]
    wide.__name__ = traced.fun_name
    shardings: dict[str, Any] = {
        name: tuple(values) if name == "in_shardings" else list(values)
        for name, values in _jax_compat.read_jit_shardings(traced).items()
    }
    return jax.jit(wide, **shardings).trace(*wide_specs)


def _can_rebuild_arguments(traced: jax.stages.Traced) -> bool:
    """Returns whether JAX can rebuild the arguments in their own types, as lowering does."""
    try:
        return traced.args_info is not None
    except Exception:  # raised by a constructor of the user
        return False


def get_out_structure(traced: jax.stages.Traced) -> Any:
    """Returns the tree structure of the results; avoids constructing their types if possible."""
    structure = getattr(traced, "out_tree", None)  # not in JAX 0.8
    return jax.tree_util.tree_structure(traced.out_info) if structure is None else structure


def trace_vjp(traced: jax.stages.Traced, shardings: VjpShardings = None) -> jax.stages.Traced:
    """Traces the VJP, which takes the flat arguments and then one cotangent for each result.

    The VJP returns one cotangent for each flat argument, float0 for those that are not
    differentiable. The user's function is not traced again, because the jaxpr has its derivative
    rules. `shardings` comes from `make_vjp_shardings`.
    """
    primal: Callable[..., list[Any]] = jaxpr_as_fun(traced.jaxpr)
    specs = make_flat_specs(traced)
    count = len(specs)

    def vjp(*args: Any) -> Sequence[Any]:
        _, pullback = jax.vjp(primal, *args[:count])
        return tuple(pullback(list(args[count:])))

    vjp.__name__ = f"{traced.fun_name}_vjp"
    cotangents = [
        _make_spec(aval, aval.dtype if _is_inexact(aval) else jax.dtypes.float0)
        for aval in traced.jaxpr.out_avals
    ]
    if shardings is None:
        return jax.jit(vjp).trace(*specs, *cotangents)
    ins, outs = shardings
    return jax.jit(vjp, in_shardings=ins, out_shardings=outs).trace(*specs, *cotangents)
