"""Traces a user's function: at its specs, at numbers, or as jax.vmap of one row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jax2tf_bridge.comparing import tolerance_of
from jax2tf_bridge.errors import BridgeError, FunctionError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax.arguments import JaxCallable, value_note
from jax2tf_bridge.from_jax.shapes import (
    POLYMORPHIC,
    ArraySpec,
    RowWise,
    SizeWords,
    Specs,
    TracedFunction,
)
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
                    f"called ({type(e).__name__}). Give its apply, as model.apply, which takes the "
                    "parameters as its first argument."
                ) from e
            note = value_note(e, function, specs.names, specs.numbers())
            if note is not None:
                e.add_note(note)
            raise
        return traced

    return TracedFunction(
        function.name,
        specs.variables(),
        lambda assumptions, scope: trace(*specs.under(assumptions, scope)),
        lambda sizes: trace(*specs.at(sizes)),
        specs.example(),
        function.source,
        words,
        row_wise=list_row_wise_forms(function, specs),
    )


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
        rows = [_add_axis(arg) if axis == 0 else arg for arg, axis in zip(args, axes, strict=True)]
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
        lambda assumptions, scope: mapped.trace(*specs.under(assumptions, scope)[0]),
        lambda: _are_equal(call, mapped, specs),
    )


def _find_axes(specs: Specs) -> tuple[int | None, ...] | None:
    """Returns in_axes for jax.vmap; None if a size other than the leading one is open."""
    variables = specs.variables()
    axes = [_find_axis(argument, variables) for argument in specs.dynamic[0]]
    if len(variables) != 1 or not specs.decided or "mixed" in axes or 0 not in axes:
        return None
    return tuple(0 if axis == 0 else None for axis in axes)


def _find_axis(argument: Any, variables: frozenset[str]) -> int | str | None:
    shapes = [leaf.shape for leaf in jax.tree_util.tree_leaves(argument)]
    if not any(is_symbolic_dim(d) for shape in shapes for d in shape):
        return None
    lead = all(shape and str(shape[0]) in variables for shape in shapes)
    return 0 if lead and not any(is_symbolic_dim(d) for s in shapes for d in s[1:]) else "mixed"


def _add_axis(row: Any) -> Any:
    return jax.tree_util.tree_map(lambda leaf: leaf[None], row)


def _are_equal(call: Callable[..., Any], mapped: Callable[..., Any], specs: Specs) -> bool:
    """Returns whether both forms agree on random numbers."""
    sizes: Mapping[str, int] = dict.fromkeys(specs.variables(), _ROWS)
    arg_specs = specs.at(sizes)[0]
    if sum(math.prod(spec.shape) for spec in jax.tree_util.tree_leaves(arg_specs)) > MAX_ELEMENTS:
        return False
    rng = np.random.default_rng(0)
    args = jax.tree_util.tree_map(lambda spec: _draw_numbers(spec, rng), arg_specs)
    expected, actual = (jax.tree_util.tree_leaves(f(*args)) for f in (call, mapped))
    return len(expected) == len(actual) and all(map(_is_close, expected, actual))


def _draw_numbers(spec: Any, rng: np.random.Generator) -> Any:
    if jax.numpy.issubdtype(spec.dtype, np.inexact):
        return rng.uniform(0.1, 0.9, spec.shape).astype(spec.dtype)
    return rng.integers(0, 2, spec.shape).astype(spec.dtype)


def _is_close(expected: Any, actual: Any) -> bool:
    if expected.shape != actual.shape or expected.dtype != actual.dtype:
        return False
    tolerance = 10 * tolerance_of(str(expected.dtype))
    return bool(np.allclose(expected, actual, rtol=tolerance, atol=tolerance, equal_nan=True))
