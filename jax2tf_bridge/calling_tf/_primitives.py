"""Defines the JAX primitives of a call, and their rules."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax2tf_bridge.calling_tf import _jax_compat
from jax2tf_bridge.calling_tf._compiled import export_compiled
from jax2tf_bridge.calling_tf._functions import FlatFunction
from jax2tf_bridge.calling_tf._graphs import make_embedded_graph
from jax2tf_bridge.calling_tf._shapes import JaxShape, compute_result_avals, compute_result_shapes
from jax2tf_bridge.calling_tf._transforms import make_batched, make_vjp
from jax2tf_bridge.calling_tf._values import make_jax_aval
from jax2tf_bridge.errors import GradientError
from jax2tf_bridge.from_jax.arguments import portable_aval
from jax2tf_bridge.from_jax.stablehlo import graph_call_p
from jax2tf_bridge.portable import Aval
from jax2tf_bridge.targets import PLATFORMS

_Type: TypeAlias = tuple[JaxShape, str]
"""Shape and dtype of an array; sizes may be symbolic."""


class StructureSlot:
    """A slot that receives the pytree structure of a call's results."""

    tree: Any = None

    def __repr__(self) -> str:
        return str(self.tree)


call_p = Primitive("call_tf")
"""Calls `function` on flat arguments, and stores the pytree of the results in `structure`."""
call_p.multiple_results = True

call_graph_p = Primitive("call_tf_as_graph")
"""Calls a function that is embedded as a graph, and not compiled."""
call_graph_p.multiple_results = True

tangent_p = Primitive("call_tf_tangent")
"""Computes the tangents of a call. It is linear in its last arguments; JAX only transposes it."""
tangent_p.multiple_results = True


def _choose_primitive(function: FlatFunction) -> Primitive:
    return call_graph_p if function.options.graph else call_p


def call(function: FlatFunction, args: Sequence[Any]) -> tuple[list[Any], Any]:
    """Calls a function; returns the flat results, and their pytree structure."""
    structure = StructureSlot()
    results = _choose_primitive(function).bind(*args, function=function, structure=structure)
    return list(results), structure.tree


def _run_eagerly(*args: Any, function: FlatFunction, structure: StructureSlot) -> list[Any]:
    results, structure.tree = function.run_eagerly(args)
    return results


def _infer_results(
    *avals: Any, function: FlatFunction, structure: StructureSlot
) -> tuple[Any, Any]:
    portable_avals = [portable_aval(aval) for aval in avals]
    if all(isinstance(size, int) for aval in portable_avals for size in aval.shape):
        results = [
            make_jax_aval(a.shape, a.dtype) for a in compute_result_avals(function, portable_avals)
        ]
    else:
        results = _infer_symbolic_results(function, portable_avals, [aval.shape for aval in avals])
    structure.tree = function.traced(portable_avals).structure
    effects: frozenset[Any] = frozenset()
    if function.options.has_side_effects:
        stateful = _is_stateful(function, portable_avals)
        # Graphs are not ordered: XLA does not order their operations, and variables cannot change,
        # so only random numbers are affected.
        ordered = stateful and function.options.ordered and not function.options.graph
        effects = _jax_compat.make_call_effects(stateful=stateful, ordered=ordered)
    return results, set(effects)


def _infer_symbolic_results(
    function: FlatFunction, avals: Sequence[Aval], shapes: Sequence[JaxShape]
) -> list[Any]:
    specs = function.traced(avals).results
    symbolic_shapes = compute_result_shapes(function, avals, shapes)
    return [
        make_jax_aval(shape, t.dtype.name) for t, shape in zip(specs, symbolic_shapes, strict=True)
    ]


def _is_stateful(function: FlatFunction, avals: Sequence[Aval]) -> bool:
    return bool(function.traced(avals).stateful_operations())


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    function: FlatFunction,
    structure: StructureSlot,
) -> tuple[list[Any], list[Any]]:
    results = _choose_primitive(function).bind(*primals, function=function, structure=structure)
    avals = [jax.typeof(result) for result in results]
    outs = tuple(i for i, aval in enumerate(avals) if jnp.issubdtype(aval.dtype, jnp.inexact))
    places = tuple(i for i, tangent in enumerate(tangents) if not isinstance(tangent, ad.Zero))
    out_tangents: list[Any] = [ad.Zero(aval.to_tangent_aval()) for aval in avals]
    if outs and places:
        tangent_results = tangent_p.bind(
            *primals,
            *(tangents[i] for i in places),
            function=function,
            places=places,
            outs=outs,
            types=tuple((avals[i].shape, avals[i].dtype.name) for i in outs),
        )
        for i, tangent in zip(outs, tangent_results, strict=True):
            out_tangents[i] = tangent
    return list(results), out_tangents


def _raise_no_tangents(*args: Any, function: FlatFunction, **params: Any) -> Any:
    raise GradientError(
        f"The TensorFlow function {function.name} has no forward-mode derivative (jax.jvp, "
        "jax.jacfwd, jax.hessian): TensorFlow gives gradients alone, that is reverse mode. Use "
        "jax.grad, jax.vjp or jax.jacrev; for second derivatives jax.jacrev(jax.jacrev(f))."
    )


tangent_p.def_impl(_raise_no_tangents)


@tangent_p.def_abstract_eval
def _infer_tangents(*args: Any, types: Sequence[_Type], **params: Any) -> list[Any]:
    return [make_jax_aval(*kind) for kind in types]


def _transpose_tangent(
    cotangents: Sequence[Any],
    *args: Any,
    function: FlatFunction,
    places: tuple[int, ...],
    outs: tuple[int, ...],
    types: Sequence[_Type],
) -> list[Any]:
    primals = args[: len(args) - len(places)]
    cotangent_indices = [i for i, ct in enumerate(cotangents) if not isinstance(ct, ad.Zero)]
    primal_cotangents: list[Any] = [None] * len(primals)
    if not cotangent_indices:
        return [*primal_cotangents, *(None for _ in places)]
    # JAX transposes with respect to the undefined tangents only.
    unknown = [
        k for k, tangent in enumerate(args[len(primals) :]) if ad.is_undefined_primal(tangent)
    ]
    gradient = make_vjp(
        function, [places[k] for k in unknown], [outs[i] for i in cotangent_indices]
    )
    results, _ = call(gradient, [*primals, *(cotangents[i] for i in cotangent_indices)])
    by_place = dict(zip(unknown, results, strict=True))
    return [*primal_cotangents, *(by_place.get(k) for k in range(len(places)))]


ad.primitive_transposes[tangent_p] = _transpose_tangent


def _move_batch_axes(args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Moves the batch axes to the front; also returns which arguments have a batch axis."""
    batched = [isinstance(dim, int) for dim in dims]
    moved = [
        jnp.moveaxis(arg, dim, 0) if has else arg
        for arg, dim, has in zip(args, dims, batched, strict=True)
    ]
    return moved, batched


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, function: FlatFunction, structure: StructureSlot
) -> tuple[list[Any], list[int]]:
    moved, batched = _move_batch_axes(args, dims)
    batch = make_batched(function, batched)
    results = _choose_primitive(function).bind(*moved, function=batch, structure=structure)
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
    moved, batched = _move_batch_axes(args, dims)
    count = len(args) - len(places)
    size = next(arg.shape[0] for arg, has in zip(moved, batched, strict=True) if has)
    for k, i in enumerate(places, count):
        # An argument and its tangent must both be batched, or neither.
        pair = batched[k] or batched[i]
        for j in (i, k):
            if pair and not batched[j]:
                moved[j] = jnp.broadcast_to(moved[j], (size, *moved[j].shape))
                batched[j] = True
    results = tangent_p.bind(
        *moved,
        function=make_batched(function, batched[:count]),
        places=places,
        outs=outs,
        types=tuple(((size, *shape), dtype) for shape, dtype in types),
    )
    return list(results), [0] * len(results)


batching.primitive_batchers[tangent_p] = _batch_tangents


def _lower(
    platform: str, ctx: Any, *args: Any, function: FlatFunction, structure: StructureSlot
) -> Any:
    avals, results = map(portable_aval, ctx.avals_in), map(portable_aval, ctx.avals_out)
    compiled_function = export_compiled(function, tuple(avals), tuple(results), platform)
    return mlir.lower_fun(lambda *xs: compiled_function.call(*xs), multiple_results=True)(
        ctx, *args
    )


def _lower_graph(ctx: Any, *args: Any, function: FlatFunction, structure: StructureSlot) -> Any:
    avals = list(map(portable_aval, ctx.avals_in))
    carried = make_embedded_graph(function, avals, list(map(portable_aval, ctx.avals_out)))
    params = {
        "function": carried.function,
        "avals": tuple(ctx.avals_out),
        "has_side_effects": function.options.has_side_effects and _is_stateful(function, avals),
    }

    def call(*xs: Any) -> Any:
        return graph_call_p.bind(*xs, *map(jnp.asarray, carried.values), **params)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *args)


for _call in (call_p, call_graph_p):
    _call.def_impl(_run_eagerly)
    _call.def_effectful_abstract_eval(_infer_results)
    ad.primitive_jvps[_call] = _jvp
    batching.primitive_batchers[_call] = _batch
mlir.register_lowering(call_graph_p, _lower_graph)
for _platform in PLATFORMS:
    mlir.register_lowering(call_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(tangent_p, lambda ctx, *args, **params: _raise_no_tangents(*args, **params))
