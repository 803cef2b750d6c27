"""Calls a portable function as TensorFlow's own operations, in graphs and eagerly."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from jax2tf_bridge._utils._once_per_object import once_per_object
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable.bytecode import Program
from jax2tf_bridge.to_tf._dtypes import op_dtype
from jax2tf_bridge.to_tf._shapes import (
    CheckedBefore,
    CheckedShapes,
    ShapeContract,
    check_shapes,
)
from jax2tf_bridge.to_tf._sharding import check_devices


@once_per_object
def program_of(portable: PortableFunction) -> Program:
    """Reads the function's module, once."""
    from jax2tf_bridge.to_tf.operations import read

    return read(portable)


def call_operations(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor] = (),
    paths: Callable[[], Sequence[str]] | None = None,
    before: CheckedBefore | None = None,
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    """Does as `call_op`, with TensorFlow's own operations in the place of XlaCallModule.

    Eagerly it calls a graph that is made once, with open sizes.

    Args:
      portable: the function.
      args: its flat arguments.
      constants: for each of its lifted constants.
      paths: how the user writes the arguments, as `check_shapes` takes it.
      before: what was checked already.
      refuses_bits: whether Bitcast in the current graph is an error for a target for converters.

    Raises:
      ModuleError: an operation of the module has no form in TensorFlow's.
      ShardingError: the function is sharded, and cannot run on one device, or not in eager mode.
      tf.errors.InvalidArgumentError: the known sizes contradict the portable function or each
        other. It is also what the function fails with when it runs, where the others do.
    """
    check_devices(portable, is_gradient=before is not None)
    checked = _checked(portable, args, paths, before)
    if tf.executing_eagerly():
        return list(_eager_function(portable)(*args, *constants))
    return _in_graph(portable, checked, args, constants, refuses_bits=refuses_bits)


_STAND_IN = "argument_"


def _checked(
    portable: PortableFunction,
    args: Sequence[tf.Tensor],
    paths: Callable[[], Sequence[str]] | None,
    before: CheckedBefore | None,
) -> CheckedShapes:
    """Checks the shapes; for converters only those that are known now.

    tf2onnx, TF.js and Core ML refuse Assert, and to OpenVINO a size that nothing uses is an output.
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


def _in_graph(
    portable: PortableFunction,
    checked: CheckedShapes,
    args: Sequence[tf.Tensor],
    constants: Sequence[tf.Tensor],
    *,
    refuses_bits: bool = False,
) -> list[tf.Tensor]:
    # Of forty modules, which XLA does without.
    from jax2tf_bridge.to_tf.operations import make_operations

    variables = checked.variables
    if portable.target.for_converters:
        args = _of_known_ranks(portable, args)
        variables = _sizes_on_demand(args, variables)
    elif checked.guards:
        # What computes with arguments or sizes of them must not fail before the guards do.
        with tf.control_dependencies(checked.guards):
            args = _of_known_ranks(portable, args)
            variables = {
                name: size if isinstance(size, int) else tf.identity(size)
                for name, size in variables.items()
            }
    taken = [*(args[i] for i in portable.module.kept_arguments), *constants]
    results = make_operations(
        portable, program_of(portable), taken, variables, refuses_bits=refuses_bits
    )
    for result, shape in zip(results, checked.results, strict=True):
        result.set_shape(shape)
    return results


def _of_known_ranks(portable: PortableFunction, args: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    args = [tf.identity(tensor) for tensor in args]
    for tensor, aval in zip(args, portable.in_avals, strict=True):
        tensor.set_shape([s if isinstance(s, int) else None for s in aval.op_shape])
    return args


def _sizes_on_demand(args: Sequence[tf.Tensor], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces sizes of the graph of stand-ins by functions that make them of the arguments."""
    graph = tf.compat.v1.get_default_graph()
    by_name = {f"{_STAND_IN}{i}:0": arg for i, arg in enumerate(args)}

    def make(size: tf.Tensor) -> tf.Tensor:
        needed = {size.op.name: size.op}
        for operation in (queue := [size.op]):
            queue += [t.op for t in operation.inputs if t.op.name not in needed]
            needed |= {t.op.name: t.op for t in operation.inputs}
        definition = tf.compat.v1.GraphDef(
            node=[operation.node_def for operation in needed.values()],
            versions=size.graph.graph_def_versions,
        )
        inputs = {name: arg for name, arg in by_name.items() if name.partition(":")[0] in needed}
        # A branch or a loop may be the first to ask.
        with graph.as_default(), tf.control_dependencies(None):
            (made,) = tf.graph_util.import_graph_def(definition, inputs, [size.name], name="size")
            return tf.cast(made, tf.int32)

    return {
        name: size if isinstance(size, int) else functools.cache(functools.partial(make, size))
        for name, size in variables.items()
    }


@once_per_object
def _eager_functions(portable: PortableFunction) -> list[Any]:
    return []


def _eager_function(portable: PortableFunction) -> Any:
    """Makes the graph that is called eagerly, at the first call."""
    made = _eager_functions(portable)
    if not made:
        # Without a lock, since it may take long: of two threads that make it, one counts.
        made.append(_traced(portable))
    return made[0]


def _traced(portable: PortableFunction) -> Any:
    avals = [*portable.in_avals, *(constant.aval for constant in portable.lifted_constants)]
    n_args = len(portable.in_avals)
    alive = weakref.ref(portable)  # the caller holds it while this is traced

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        function = alive()
        assert function is not None, "the function is held by its caller"
        args, constants = tensors[:n_args], tensors[n_args:]
        # Whoever calls it eagerly knows all sizes, and has checked them.
        before = CheckedBefore(n_args, ShapeContract.of(function))
        return _in_graph(function, _checked(function, args, None, before), args, constants)

    specs = [
        tf.TensorSpec(
            [size if isinstance(size, int) else None for size in aval.op_shape],
            op_dtype(aval, "an argument"),
        )
        for aval in avals
    ]
    # Concrete, since TensorFlow warns of many functions of one name that are traced when called.
    return tf.function(call, input_signature=specs, autograph=False).get_concrete_function()
