"""Calls a portable function as TensorFlow's own operations, instead of one XlaCallModule op."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils import once_per_object
from jax2tf_bridge.bytecode import Program
from jax2tf_bridge.portable import PortableFunction
from jax2tf_bridge.to_tensorflow._dtypes import op_spec
from jax2tf_bridge.to_tensorflow._graph_functions import get_graph_functions
from jax2tf_bridge.to_tensorflow._shapes import (
    CheckedShapes,
    EarlierShapeCheck,
    ShapeContract,
    check_shapes,
)
from jax2tf_bridge.to_tensorflow._sharding import check_devices


@once_per_object
def get_program(portable: PortableFunction) -> Program:
    """Returns the function's module as a program, which is read once and cached."""
    from jax2tf_bridge.emitters import read

    return read(portable)


@once_per_object
def _get_rewritten_program(portable: PortableFunction) -> Program:
    from jax2tf_bridge.emitters import rewrite_program

    return rewrite_program(portable, get_program(portable))


def call_operations(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor] = (),
    paths: Callable[[], Sequence[str]] | None = None,
    before: EarlierShapeCheck | None = None,
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    """Calls the function like `call_op`, but with TensorFlow's own operations.

    In eager mode it calls a graph with open sizes, which is traced once.

    Args:
      portable: the function.
      args: its flat arguments.
      constants: one tensor for each of its lifted constants.
      paths: returns the arguments' names for messages, as in `check_shapes`.
      before: the shape checks of an earlier call, which are not repeated.
      refuses_bits: whether Bitcast in the current graph is an error for a converter target.

    Raises:
      ModuleError: TensorFlow cannot express an operation of the module.
      ShardingError: the function is sharded, and cannot run on one device, or not in eager mode.
      tf.errors.InvalidArgumentError: the known sizes contradict the portable function or each
        other. Sizes that are unknown now are checked at run time.
    """
    check_devices(portable, is_gradient=before is not None)
    checked = _check_shapes(portable, args, paths, before)
    if tf.executing_eagerly():
        return list(_get_eager_function(portable)(*args, *constants))
    return _call_in_graph(portable, checked, args, constants, refuses_bits=refuses_bits)


_STAND_IN = "argument_"


def _check_shapes(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    paths: Callable[[], Sequence[str]] | None,
    before: EarlierShapeCheck | None,
) -> CheckedShapes:
    """Checks the shapes; for converter targets only the sizes that are known now.

    tf2onnx, TF.js and Core ML refuse Assert, and OpenVINO turns unused sizes into outputs.
    """
    if not portable.target.for_converters:
        return check_shapes(portable, args, paths, before)
    with tf.Graph().as_default():
        stand_ins = [
            tf.compat.v1.placeholder(
                arg.dtype,
                [None] * len(aval.op_shape) if arg.shape.rank is None else arg.shape,
                f"{_STAND_IN}{i}",
            )
            for i, (arg, aval) in enumerate(zip(args, portable.in_avals, strict=True))
        ]
        return replace(check_shapes(portable, stand_ins, paths, before), guards=[])


def _call_in_graph(
    portable: PortableFunction,
    checked: CheckedShapes,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor],
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    # Imported lazily, because functions for XLA do not need these forty modules.
    from jax2tf_bridge.emitters import make_operations

    variables = checked.variables
    if portable.target.for_converters:
        args = _set_ranks(portable, args)
        variables = _defer_sizes(args, variables)
    elif checked.guards:
        # The guards must fail before any computation with the arguments or their sizes does.
        with tf.control_dependencies(checked.guards):
            args = _set_ranks(portable, args)
            variables = {
                name: size if isinstance(size, int) else tf.identity(size)
                for name, size in variables.items()
            }
    inputs = [*(args[i] for i in portable.module.kept_arguments), *constants]
    results = make_operations(
        portable,
        _get_rewritten_program(portable),
        inputs,
        variables,
        get_graph_functions(portable),
        refuses_bits=refuses_bits,
    )
    for result, shape in zip(results, checked.results, strict=True):
        result.set_shape(shape)
    return results


def _set_ranks(portable: PortableFunction, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    args = [tf.identity(tensor) for tensor in args]
    for tensor, aval in zip(args, portable.in_avals, strict=True):
        tensor.set_shape([s if isinstance(s, int) else None for s in aval.op_shape])
    return args


def _defer_sizes(args: Sequence[tf.Tensor], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces sizes in the stand-in graph by functions that compute them from the arguments."""
    graph = tf.compat.v1.get_default_graph()
    by_name = {f"{_STAND_IN}{i}:0": arg for i, arg in enumerate(args)}

    def compute_size(size: tf.Tensor) -> tf.Tensor:
        needed = {size.op.name: size.op}
        for operation in (queue := [size.op]):
            queue += [t.op for t in operation.inputs if t.op.name not in needed]
            needed |= {t.op.name: t.op for t in operation.inputs}
        definition = tf.compat.v1.GraphDef(
            node=[operation.node_def for operation in needed.values()],
            versions=size.graph.graph_def_versions,
        )
        inputs = {name: arg for name, arg in by_name.items() if name.partition(":")[0] in needed}
        # The first call may come from a branch or loop, whose tensors others cannot use.
        with graph.as_default(), tf.control_dependencies(None):
            (value,) = tf.graph_util.import_graph_def(definition, inputs, [size.name], name="size")
            return tf.cast(value, tf.int32)

    return {
        name: size
        if isinstance(size, int)
        else functools.cache(functools.partial(compute_size, size))
        for name, size in variables.items()
    }


@once_per_object
def _eager_functions(portable: PortableFunction) -> list[Any]:
    return []


def _get_eager_function(portable: PortableFunction) -> Any:
    """Returns the graph for eager calls, which is traced at the first call."""
    functions = _eager_functions(portable)
    if not functions:
        # No lock, because tracing may take long: if two threads trace, the first one is used.
        functions.append(_trace(portable))
    return functions[0]


def _trace(portable: PortableFunction) -> Any:
    avals = [*portable.in_avals, *(constant.aval for constant in portable.lifted_constants)]
    n_args = len(portable.in_avals)
    alive = weakref.ref(portable)  # the caller keeps it alive while this is traced

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        function = alive()
        assert function is not None, "the function is held by its caller"
        args, constants = tensors[:n_args], tensors[n_args:]
        # An eager caller knows all sizes, and has checked them.
        before = EarlierShapeCheck(n_args, ShapeContract.of(function))
        return _call_in_graph(
            function, _check_shapes(function, args, None, before), args, constants
        )

    specs = [op_spec(aval, "an argument") for aval in avals]
    # A concrete function, because TensorFlow warns if many functions of one name are retraced.
    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
