"""Defines the primitives that stand for a call in JAX, and JAX's rules for them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax2tf_bridge.call_tf import _jax_compat
from jax2tf_bridge.call_tf._batches import batch_of
from jax2tf_bridge.call_tf._compiled import exported
from jax2tf_bridge.call_tf._functions import FlatFunction
from jax2tf_bridge.call_tf._gradients import gradient_of
from jax2tf_bridge.call_tf._graphs import carried_graph
from jax2tf_bridge.call_tf._shapes import JaxShape, result_avals, result_shapes
from jax2tf_bridge.call_tf._values import jax_aval
from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.from_jax.arguments._avals import portable_aval
from jax2tf_bridge.from_jax.stablehlo._graph_calls import graph_call_p
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._target import PLATFORMS

_Type: TypeAlias = tuple[JaxShape, str]
"""Shape and dtype of a value; sizes may be symbolic."""


class Structure:
    """Slot for the pytree of a call's results; each call has its own."""

    found: Any = None

    def __repr__(self) -> str:
        return str(self.found)


call_p = Primitive("call_tf")
"""Calls `function` on its flat arguments, and leaves the pytree of the results in `structure`."""
call_p.multiple_results = True

call_graph_p = Primitive("call_tf_as_graph")
"""Calls a function that is carried along as a graph, which has no compiled form."""
call_graph_p.multiple_results = True

tangent_p = Primitive("call_tf_tangent")
"""Computes the tangents of a call: linear in its last arguments, and only ever transposed."""
tangent_p.multiple_results = True


def _primitive(function: FlatFunction) -> Primitive:
    return call_graph_p if function.options.graph else call_p


def call(function: FlatFunction, args: Sequence[Any]) -> tuple[list[Any], Any]:
    """Calls a function; returns the flat results, and the pytree that they form."""
    structure = Structure()
    results = _primitive(function).bind(*args, function=function, structure=structure)
    return list(results), structure.found


def _run(*args: Any, function: FlatFunction, structure: Structure) -> list[Any]:
    results, structure.found = function.eager(args)
    return results


def _abstract(*avals: Any, function: FlatFunction, structure: Structure) -> tuple[Any, Any]:
    given = [portable_aval(aval) for aval in avals]
    if all(isinstance(size, int) for aval in given for size in aval.shape):
        results = [jax_aval(a.shape, a.dtype) for a in result_avals(function, given)]
    else:
        results = _symbolic_results(function, given, [aval.shape for aval in avals])
    structure.found = function.traced(given).structure
    effects: frozenset[Any] = frozenset()
    if function.options.has_side_effects:
        stateful = _is_stateful(function, given)
        # XLA keeps no order among what it compiles of a graph, and only random numbers are left.
        ordered = stateful and function.options.ordered and not function.options.graph
        effects = _jax_compat.call_effects(stateful=stateful, ordered=ordered)
    return results, set(effects)


def _symbolic_results(
    function: FlatFunction, avals: Sequence[Aval], shapes: Sequence[JaxShape]
) -> list[Any]:
    traced = function.traced(avals).results
    found = result_shapes(function, avals, shapes)
    return [jax_aval(shape, t.dtype.name) for t, shape in zip(traced, found, strict=True)]


def _is_stateful(function: FlatFunction, avals: Sequence[Aval]) -> bool:
    return bool(function.traced(avals).stateful_operations())


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    function: FlatFunction,
    structure: Structure,
) -> tuple[list[Any], list[Any]]:
    results = _primitive(function).bind(*primals, function=function, structure=structure)
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
            types=tuple((avals[i].shape, avals[i].dtype.name) for i in outs),
        )
        for i, tangent in zip(outs, found, strict=True):
            out_tangents[i] = tangent
    return list(results), out_tangents


def _no_tangents(*args: Any, function: FlatFunction, **params: Any) -> Any:
    raise GradientError(
        f"The TensorFlow function {function.name} has no forward-mode derivative (jax.jvp, "
        "jax.jacfwd, jax.hessian): TensorFlow gives gradients alone, that is reverse mode. Use "
        "jax.grad, jax.vjp or jax.jacrev; for second derivatives jax.jacrev(jax.jacrev(f))."
    )


tangent_p.def_impl(_no_tangents)


@tangent_p.def_abstract_eval
def _tangent_avals(*args: Any, types: Sequence[_Type], **params: Any) -> list[Any]:
    return [jax_aval(*kind) for kind in types]


def _transpose(
    cotangents: Sequence[Any],
    *args: Any,
    function: FlatFunction,
    places: tuple[int, ...],
    outs: tuple[int, ...],
    types: Sequence[_Type],
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
    """Moves the batch axes to the front; returns which arguments have one, too."""
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
    batch = batch_of(function, batched)
    results = _primitive(function).bind(*moved, function=batch, structure=structure)
    return list(results), [0] * len(results)


def _batch_tangents(
    args: Sequence[Any],
    dims: Sequence[Any],
    *,
    function: FlatFunction,
    places: tuple[int, ...],
    outs: tuple[int, ...],
    types: Sequence[_Type],
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
        types=tuple(((size, *shape), dtype) for shape, dtype in types),
    )
    return list(results), [0] * len(results)


batching.primitive_batchers[tangent_p] = _batch_tangents


def _lower(
    platform: str, ctx: Any, *args: Any, function: FlatFunction, structure: Structure
) -> Any:
    avals, results = map(portable_aval, ctx.avals_in), map(portable_aval, ctx.avals_out)
    made = exported(function, tuple(avals), tuple(results), platform)
    return mlir.lower_fun(lambda *xs: made.call(*xs), multiple_results=True)(ctx, *args)


def _lower_graph(ctx: Any, *args: Any, function: FlatFunction, structure: Structure) -> Any:
    avals = list(map(portable_aval, ctx.avals_in))
    carried = carried_graph(function, avals, list(map(portable_aval, ctx.avals_out)))
    params = {
        "function": carried.function,
        "avals": tuple(ctx.avals_out),
        "has_side_effects": function.options.has_side_effects and _is_stateful(function, avals),
    }

    def call(*xs: Any) -> Any:
        return graph_call_p.bind(*xs, *map(jnp.asarray, carried.values), **params)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *args)


for _call in (call_p, call_graph_p):
    _call.def_impl(_run)
    _call.def_effectful_abstract_eval(_abstract)
    ad.primitive_jvps[_call] = _jvp
    batching.primitive_batchers[_call] = _batch
mlir.register_lowering(call_graph_p, _lower_graph)
for _platform in PLATFORMS:
    mlir.register_lowering(call_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(tangent_p, lambda ctx, *args, **params: _no_tangents(*args, **params))
