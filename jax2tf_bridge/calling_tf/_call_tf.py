"""Defines call_tf(), which makes a JAX function from a TensorFlow function, and its primitives."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import tensorflow as tf
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from jax2tf_bridge.calling_tf import _jax_compat
from jax2tf_bridge.calling_tf._compiled import export_compiled
from jax2tf_bridge.calling_tf._functions import CallOptions, FlatFunction, UserFunction
from jax2tf_bridge.calling_tf._graphs import make_embedded_graph
from jax2tf_bridge.calling_tf._shapes import JaxShape, compute_result_avals, compute_result_shapes
from jax2tf_bridge.calling_tf._transforms import make_batch_function, make_vjp
from jax2tf_bridge.calling_tf._values import (
    UNSPECIFIED,
    DeclaredResults,
    convert_argument,
    make_jax_aval,
)
from jax2tf_bridge.errors import FunctionError, GradientError
from jax2tf_bridge.from_jax.arguments import portable_aval
from jax2tf_bridge.from_jax.lowering import graph_call_p
from jax2tf_bridge.from_jax.trees import check_dict_keys, register_wrappers
from jax2tf_bridge.targets import PLATFORMS
from jax2tf_bridge.to_tensorflow import opaque_to_autograph, tf_compat

_Type: TypeAlias = tuple[JaxShape, str]
"""Shape and dtype of an array; sizes may be symbolic."""


class _StructureSlot:
    """A slot that receives the pytree structure of a call's results."""

    tree: Any = None

    def __repr__(self) -> str:
        return str(self.tree)


call_p = Primitive("call_tf")
"""Calls `function` on flat arguments; stores the results' pytree structure in `structure`."""
call_p.multiple_results = True

call_graph_p = Primitive("call_tf_as_graph")
"""Calls a function that is embedded as a graph instead of being compiled."""
call_graph_p.multiple_results = True

tangent_p = Primitive("call_tf_tangent")
"""Computes the tangents of a call. It is linear in its last arguments; JAX only transposes it."""
tangent_p.multiple_results = True


def _choose_primitive(function: FlatFunction) -> Primitive:
    return call_graph_p if function.options.graph else call_p


def _call(function: FlatFunction, args: Sequence[Any]) -> tuple[list[Any], Any]:
    """Calls a function; returns the flat results, and their pytree structure."""
    structure = _StructureSlot()
    results = _choose_primitive(function).bind(*args, function=function, structure=structure)
    return list(results), structure.tree


def _run_eagerly(*args: Any, function: FlatFunction, structure: _StructureSlot) -> list[Any]:
    results, structure.tree = function.run_eagerly(args)
    return results


def _infer_results(
    *avals: Any, function: FlatFunction, structure: _StructureSlot
) -> tuple[Any, Any]:
    portable_avals = [portable_aval(aval) for aval in avals]
    trace = function.get_trace(portable_avals)
    if all(isinstance(size, int) for aval in portable_avals for size in aval.shape):
        result_avals = compute_result_avals(function, portable_avals)
        results = [make_jax_aval(aval.shape, aval.dtype) for aval in result_avals]
    else:
        shapes = compute_result_shapes(function, portable_avals, [aval.shape for aval in avals])
        results = [
            make_jax_aval(shape, t.dtype.name)
            for t, shape in zip(trace.results, shapes, strict=True)
        ]
    structure.tree = trace.structure
    if not function.options.has_side_effects:
        return results, set()
    stateful = bool(trace.list_stateful_operations())
    # Graphs are not ordered: XLA does not order their operations, and variables cannot change, so
    # only random numbers are affected.
    ordered = stateful and function.options.ordered and not function.options.graph
    return results, set(_jax_compat.make_call_effects(stateful=stateful, ordered=ordered))


def _jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    function: FlatFunction,
    structure: _StructureSlot,
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
        "jax.jacfwd, jax.hessian), because TensorFlow differentiates in reverse mode only. Use "
        "jax.grad, jax.vjp or jax.jacrev; for second derivatives jax.jacrev(jax.jacrev(f))."
    )


tangent_p.def_impl(_raise_no_tangents)


@tangent_p.def_abstract_eval
def _infer_tangents(*args: Any, types: Sequence[_Type], **params: Any) -> list[Any]:
    return [make_jax_aval(shape, dtype) for shape, dtype in types]


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
    undefined = [
        k for k, tangent in enumerate(args[len(primals) :]) if ad.is_undefined_primal(tangent)
    ]
    gradient = make_vjp(
        function, [places[k] for k in undefined], [outs[i] for i in cotangent_indices]
    )
    results, _ = _call(gradient, [*primals, *(cotangents[i] for i in cotangent_indices)])
    tangent_cotangents = dict(zip(undefined, results, strict=True))
    return [*primal_cotangents, *(tangent_cotangents.get(k) for k in range(len(places)))]


ad.primitive_transposes[tangent_p] = _transpose_tangent


def _move_batch_axes(args: Sequence[Any], dims: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Moves the batch axes to the front; also returns which arguments have a batch axis."""
    batched = [isinstance(dim, int) for dim in dims]
    front_args = [
        jnp.moveaxis(arg, dim, 0) if is_batched else arg
        for arg, dim, is_batched in zip(args, dims, batched, strict=True)
    ]
    return front_args, batched


def _batch(
    args: Sequence[Any], dims: Sequence[Any], *, function: FlatFunction, structure: _StructureSlot
) -> tuple[list[Any], list[int]]:
    front_args, batched = _move_batch_axes(args, dims)
    batch = make_batch_function(function, batched)
    results = _choose_primitive(function).bind(*front_args, function=batch, structure=structure)
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
    front_args, batched = _move_batch_axes(args, dims)
    n_primals = len(args) - len(places)
    size = next(
        arg.shape[0] for arg, is_batched in zip(front_args, batched, strict=True) if is_batched
    )
    for k, i in enumerate(places, n_primals):
        # An argument and its tangent must both be batched, or neither.
        is_pair_batched = batched[k] or batched[i]
        for j in (i, k):
            if is_pair_batched and not batched[j]:
                front_args[j] = jnp.broadcast_to(front_args[j], (size, *front_args[j].shape))
                batched[j] = True
    results = tangent_p.bind(
        *front_args,
        function=make_batch_function(function, batched[:n_primals]),
        places=places,
        outs=outs,
        types=tuple(((size, *shape), dtype) for shape, dtype in types),
    )
    return list(results), [0] * len(results)


batching.primitive_batchers[tangent_p] = _batch_tangents


def _lower(
    platform: str, ctx: Any, *args: Any, function: FlatFunction, structure: _StructureSlot
) -> Any:
    avals, results = map(portable_aval, ctx.avals_in), map(portable_aval, ctx.avals_out)
    compiled_function = export_compiled(function, tuple(avals), tuple(results), platform)
    return mlir.lower_fun(lambda *xs: compiled_function.call(*xs), multiple_results=True)(
        ctx, *args
    )


def _lower_graph(ctx: Any, *args: Any, function: FlatFunction, structure: _StructureSlot) -> Any:
    avals = list(map(portable_aval, ctx.avals_in))
    embedded = make_embedded_graph(function, avals, list(map(portable_aval, ctx.avals_out)))
    params = {
        "function": embedded.function,
        "avals": tuple(ctx.avals_out),
        "has_side_effects": function.options.has_side_effects
        and bool(function.get_trace(avals).list_stateful_operations()),
    }

    def call(*xs: Any) -> Any:
        return graph_call_p.bind(*xs, *map(jnp.asarray, embedded.values), **params)

    return mlir.lower_fun(call, multiple_results=True)(ctx, *args)


for _primitive in (call_p, call_graph_p):
    _primitive.def_impl(_run_eagerly)
    _primitive.def_effectful_abstract_eval(_infer_results)
    ad.primitive_jvps[_primitive] = _jvp
    batching.primitive_batchers[_primitive] = _batch
mlir.register_lowering(call_graph_p, _lower_graph)
for _platform in PLATFORMS:
    mlir.register_lowering(call_p, functools.partial(_lower, _platform), platform=_platform)
mlir.register_lowering(tangent_p, lambda ctx, *args, **params: _raise_no_tangents(*args, **params))


def _get_function_name(f: Any) -> str:
    if isinstance(f, tf.types.experimental.ConcreteFunction):
        name = f.name
        return name.decode() if isinstance(name, bytes) else str(name)
    name = getattr(f, "__name__", None) or getattr(f, "name", None)
    return name if isinstance(name, str) and name else type(f).__name__


def _label_arguments(f: Callable[..., Any], args: tuple[Any, ...], kwargs: Any) -> list[str]:
    # Labels look like "params['w']".
    return [
        label + jax.tree_util.keystr(path)
        for label, value in _label_values(f, args, {key: kwargs[key] for key in sorted(kwargs)})
        for path, _ in jax.tree_util.tree_flatten_with_path(value)[0]
    ]


def _label_values(
    f: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, Any]]:
    names = _list_parameters(f)
    for i, value in enumerate(args):
        yield names[i] if i < len(names) else f"argument {i}", value
    yield from kwargs.items()


def _list_parameters(f: Callable[..., Any]) -> list[str]:
    function = getattr(f, "python_function", f)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [p.name for p in parameters if p.kind in kinds]


@opaque_to_autograph
def call_tf(
    callable_tf: Callable[..., Any],
    has_side_effects: bool = True,
    ordered: bool = False,
    output_shape_dtype: Any = UNSPECIFIED,
    call_tf_graph: bool = False,
) -> Callable[..., Any]:
    """Makes a JAX function from a TensorFlow function.

    Called on arrays, the function runs operation by operation in eager TensorFlow. In jax.jit,
    scan, cond, while_loop and `convert`, XLA compiles it, and the result becomes part of the JAX
    program, on every platform; with custom calls, only on platforms that the installed TensorFlow
    has devices for. The function supports jax.vmap, and reverse-mode differentiation of as many
    orders as TensorFlow supports.

    Args:
      callable_tf: a function of tensors, a tf.function, a tf.Module or Keras model, or a function
        of a reloaded SavedModel. Calls read the current values of its tf.Variables; a compiled
        program contains the values at the time of compilation as constants.
      has_side_effects: whether calls have side effects, so that JAX does not drop them.
        jax.checkpoint, which calls a function twice, rejects such calls if they change variables or
        draw random numbers.
      ordered: whether calls that draw random numbers or change variables keep their order.
      output_shape_dtype: a pytree of jax.ShapeDtypeStruct that the results must match. Pass it if
        TensorFlow does not know the shapes of the results before it runs. None declares a function
        without results. By default, all results that are arrays are accepted.
      call_tf_graph: whether `convert` and `export` embed the function as a TensorFlow graph, which
        TensorFlow compiles where the model runs, for any platform and sizes. jax.jit and jax.export
        cannot run such a function: NotExportableError.

    Returns:
      A function that takes pytrees of arrays and numbers, positional or by keyword, and returns a
      pytree of arrays; 64-bit results become 32-bit unless jax_enable_x64 is set. A call raises
      DTypeError for arguments of a dtype that TensorFlow lacks; CallTfError if the function
      raises; StructureError, ShapeError or DTypeError if its results cannot be arrays or are not
      as declared; UnsupportedByTargetError or PlatformError if XLA cannot compile it; and
      GradientError if it has no gradient, or in forward mode.

    Raises:
      FunctionError: `callable_tf` is not callable.
      StructureError, ShapeError: output_shape_dtype does not declare arrays.

    >>> import jax, jax.numpy as jnp, tensorflow as tf
    >>> f = call_tf(lambda x: tf.square(x))
    >>> float(f(3.0)), float(jax.jit(f)(3.0)), float(jax.grad(f)(3.0))
    (9.0, 9.0, 6.0)
    """
    if not callable(callable_tf):
        raise FunctionError(
            f"call_tf expected a TensorFlow function. Got: {callable_tf!r:.200} of type "
            f"{type(callable_tf).__name__}, which cannot be called."
        )
    register_wrappers(*tf_compat.wrapper_types())
    name = _get_function_name(callable_tf)
    declared = DeclaredResults.of(output_shape_dtype, name, graph=call_tf_graph)
    options = CallOptions(has_side_effects or ordered, ordered, declared, call_tf_graph)
    functions: dict[Any, UserFunction] = {}

    def jax_function(*args: Any, **kwargs: Any) -> Any:
        try:
            leaves, in_tree = jax.tree_util.tree_flatten((args, kwargs))
        except ValueError:
            for label, value in _label_values(callable_tf, args, kwargs):
                check_dict_keys(value, f"The argument {label}", f" of {name}")
            raise
        labels = _label_arguments(callable_tf, args, kwargs)
        values = [
            convert_argument(leaf, label, name) for leaf, label in zip(leaves, labels, strict=True)
        ]
        function = functions.get(in_tree)
        if function is None:
            new_function = UserFunction(callable_tf, in_tree, name, options)
            function = functions.setdefault(in_tree, new_function)
        results, structure = _call(function, values)
        return jax.tree_util.tree_unflatten(structure, results)

    functools.update_wrapper(jax_function, callable_tf, assigned=("__doc__",), updated=())
    jax_function.__name__ = jax_function.__qualname__ = name
    return opaque_to_autograph(jax_function)
