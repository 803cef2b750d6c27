"""The two primitives that stand for a call in JAX, and JAX's rules for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax2tf_bridge._errors import GradientError
from jax2tf_bridge._portable import Aval
from jax2tf_bridge._target import PLATFORMS
from jax2tf_bridge.call_tf import _jax_compat
from jax2tf_bridge.call_tf._batches import batch_of
from jax2tf_bridge.call_tf._compiled import compiled, exported
from jax2tf_bridge.call_tf._functions import FlatFunction
from jax2tf_bridge.call_tf._gradients import gradient_of
from jax2tf_bridge.call_tf._values import aval_of, jax_aval
from jax2tf_bridge.from_jax._avals import portable_aval


class Structure:
    """Where a call finds the pytree of its results; each has its own."""

    found: Any = None

    def __repr__(self) -> str:
        return str(self.found)


call_p = Primitive("call_tf")
"""Calls `function` on its flat arguments, and leaves the pytree of the results in `structure`."""
call_p.multiple_results = True

tangent_p = Primitive("call_tf_tangent")
"""The tangents of a call: linear in its last arguments, and there to be transposed alone."""
tangent_p.multiple_results = True


def call(function: FlatFunction, args: Sequence[Any]) -> tuple[list[Any], Any]:
    """The flat results, and the pytree that they form."""
    structure = Structure()
    results = call_p.bind(*args, function=function, structure=structure)
    return list(results), structure.found


def result_avals(function: FlatFunction, avals: Sequence[Aval]) -> list[Aval]:
    """The shapes and dtypes of the results.

    Where TensorFlow does not know a size before it compiles, XLA may.
    """
    traced = function.traced(avals)
    if all(t.shape.is_fully_defined() for t in traced.results):
        return [aval_of(t) for t in traced.results]
    declared = function.options.declared
    return list(declared.avals if declared else compiled(function, avals, "cpu").results)


@call_p.def_impl
def _run(*args: Any, function: FlatFunction, structure: Structure) -> list[Any]:
    results, structure.found = function.eager(args)
    return results


@call_p.def_effectful_abstract_eval
def _abstract(*avals: Any, function: FlatFunction, structure: Structure) -> tuple[Any, Any]:
    given = [portable_aval(aval) for aval in avals]
    results = result_avals(function, given)
    traced = function.traced(given)
    structure.found = traced.structure
    effects: frozenset[Any] = frozenset()
    options = function.options
    if options.has_side_effects and traced.stateful_operations():
        effects = _jax_compat.call_effects(ordered=options.ordered)
    return [jax_aval(aval) for aval in results], set(effects)


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    function: FlatFunction,
    structure: Structure,
) -> tuple[list[Any], list[Any]]:
    results = call_p.bind(*primals, function=function, structure=structure)
    avals = [jax.typeof(result) for result in results]
    outs = tuple(i for i, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jnp.inexact))
    places = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero))
    out_tangents: list[Any] = [ad.Zero(aval.to_tangent_aval()) for aval in avals]
    if outs and places:
        found = tangent_p.bind(
            *primals,
            *(tangents[i] for i in places),
            function=function,
            places=places,
            outs=outs,
            avals=tuple(portable_aval(avals[i]) for i in outs),
        )
        for i, tangent in zip(outs, found, strict=True):
            out_tangents[i] = tangent
    return list(results), out_tangents


ad.primitive_jvps[call_p] = _jvp


def _no_tangents(*args: Any, function: FlatFunction, **params: Any) -> Any:
    raise GradientError(
        f"The TensorFlow function {function.name} has no forward-mode derivative (jax.jvp, "
        "jax.jacfwd, jax.hessian): TensorFlow gives gradients alone, that is reverse mode. Use "
        "jax.grad, jax.vjp or jax.jacrev; for second derivatives jax.jacrev(jax.jacrev(f))."
    )


tangent_p.def_impl(_no_tangents)


@tangent_p.def_abstract_eval
def _tangent_avals(*args: Any, avals: Sequence[Aval], **params: Any) -> list[Any]:
    return [jax_aval(aval) for aval in avals]


def _transpose(
    cotangents: Sequence[Any],
    *args: Any,
    function: FlatFunction,
    places: tuple[int, ...],
    outs: tuple[int, ...],
    avals: Sequence[Aval],
) -> list[Any]:
    primals = args[: len(args) - len(places)]
    given = [i for i, ct in enumerate(cotangents) if not isinstance(ct, ad.Zero)]
    pulled: list[Any] = [None] * len(primals)
    if not given:
        return [*pulled, *(None for _ in places)]
    # An argument whose tangent is known is of no concern to what is linear in the others.
    unknown = [
        k for k, tangent in enumerate(args[len(primals) :]) if ad.is_undefined_primal(tangent)
    ]
    gradient = gradient_of(function, [places[k] for k in unknown], [outs[i] for i in given])
    found, _ = call(gradient, [*primals, *(cotangents[i] for i in given)])
    by_place = dict(zip(unknown, found, strict=True))
    return [*pulled, *(by_place.get(k) for k in range(len(places)))]


ad.primitive_transposes[tangent_p] = _transpose


def _rows_first(args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """The arguments with their batch axis first, and which have one."""
    batched = [isinstance(dim, int) for dim in dims]
    moved = [
        jnp.moveaxis(arg, dim, 0) if has else arg
        for arg, dim, has in zip(args, dims, batched, strict=True)
    ]
    return moved, batched


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, function: FlatFunction, structure: Structure
) -> tuple[list[Any], list[int]]:
    moved, batched = _rows_first(args, dims)
    results = call_p.bind(*moved, function=batch_of(function, batched), structure=structure)
    return list(results), [0] * len(results)


batching.primitive_batchers[call_p] = _batch


def _batch_tangents(
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    function: FlatFunction,
    places: tuple[int, ...],
    outs: tuple[int, ...],
    avals: Sequence[Aval],
) -> tuple[list[Any], list[int]]:
    moved, batched = _rows_first(args, dims)
    count = len(args) - len(places)
    size = next(arg.shape[0] for arg, has in zip(moved, batched, strict=True) if has)
    for k, i in enumerate(places, count):
        # Both or none: the tangent of a row is that of the row's argument.
        pair = batched[k] or batched[i]
        for j in (i, k):
            if pair and not batched[j]:
                moved[j] = jnp.broadcast_to(moved[j], (size, *moved[j].shape))
                batched[j] = True
    results = tangent_p.bind(
        *moved,
        function=batch_of(function, batched[:count]),
        places=places,
        outs=outs,
        avals=tuple(Aval((size, *aval.shape), aval.dtype) for aval in avals),
    )
    return list(results), [0] * len(results)


batching.primitive_batchers[tangent_p] = _batch_tangents


def _lower(
    platform: str, ctx: Any, *args: Any, function: FlatFunction, structure: Structure
) -> Any:
    avals, results = map(portable_aval, ctx.avals_in), map(portable_aval, ctx.avals_out)
    made = exported(function, tuple(avals), tuple(results), platform)
    return mlir.lower_fun(lambda *xs: made.call(*xs), multiple_results=True)(ctx, *args)


for _platform in PLATFORMS:
    mlir.register_lowering(call_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(tangent_p, lambda ctx, *args, **params: _no_tangents(*args, **params))
