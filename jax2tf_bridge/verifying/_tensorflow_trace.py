"""Computes every tensor of a TensorFlow function."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.to_tensorflow import freeze
from jax2tf_bridge.verifying._locating import Step, Trace

CALL_MODULE = "XlaCallModule"

_BODIES = {"While": "body", "If": "then_branch", "Case": "branches"}
"""Operations of loops and branches, and the attribute with the function of their body."""

_NOT_READ = (tf.resource, tf.variant, tf.string)


def trace_tensors(
    function: Callable[..., Sequence[tf.Tensor]], arguments: Sequence[tf.Tensor]
) -> Trace:
    """Computes all tensors of a function, without those inside loops and branches.

    Args:
      function: the function of these tensors.
      arguments: the tensors.

    Raises:
      ModuleError: the installed TensorFlow cannot inline the functions of a graph.
    """
    specs = [tf.TensorSpec(tensor.shape, tensor.dtype) for tensor in arguments]
    concrete = tf.function(function, input_signature=specs, autograph=False).get_concrete_function()
    frozen = freeze(concrete, aggressive_inlining=False)
    trace, numbers = Trace(), {}
    fetched: list[Any] = []
    for operation in frozen.graph.get_operations():
        for tensor in operation.outputs:
            numbers[tensor.ref()] = trace.add(None)
            if tensor.dtype not in _NOT_READ:
                fetched.append(tensor)
        if operation.type not in ("Placeholder", "Const"):
            trace.steps.append(
                Step(
                    operation.type,
                    operation.name,
                    tuple(numbers[tensor.ref()] for tensor in operation.inputs),
                    tuple(numbers[tensor.ref()] for tensor in operation.outputs),
                    functools.partial(_trace_body, operation, trace, len(trace.steps))
                    if operation.type.removeprefix("Stateless") in _BODIES
                    else None,
                )
            )
    run = frozen.prune(frozen.inputs, fetched)
    for tensor, value in zip(fetched, run(*arguments), strict=True):
        trace.values[numbers[tensor.ref()]] = value.numpy()
    trace.outputs = [numbers[tensor.ref()] for tensor in frozen.outputs]
    return trace


def _trace_body(operation: Any, outer: Trace, place: int) -> Trace | None:
    """Computes the tensors of the first iteration of a loop, or of the chosen branch."""
    values = [outer.values[number] for number in outer.steps[place].operands]
    kind = operation.type.removeprefix("Stateless")
    name = _BODIES[kind]
    if kind == "While":
        body = operation.get_attr(name).name
    elif kind == "If":
        condition, *values = values
        body = operation.get_attr(name if condition else "else_branch").name
    else:
        index, *values = values
        branches = operation.get_attr(name)
        body = branches[min(max(int(index), 0), len(branches) - 1)].name
    if any(value is None for value in values):
        return None
    return trace_tensors(
        functools.partial(_call_body, operation.graph.as_graph_def().library, body),
        [tf.constant(value) for value in values],
    )


def _call_body(library: Any, body: str, *arguments: tf.Tensor) -> Sequence[tf.Tensor]:
    """Calls a function of a library in the current graph."""
    signature = next(f.signature for f in library.function if f.signature.name == body)
    graph = tf.compat.v1.GraphDef(library=library)
    names = [f"argument_{i}" for i in range(len(arguments))]
    for name, argument in zip(names, arguments, strict=True):
        node = graph.node.add(name=name, op="Placeholder")
        node.attr["dtype"].type = argument.dtype.as_datatype_enum
    call = graph.node.add(name="body", op="StatefulPartitionedCall", input=names)
    call.attr["f"].func.name = body
    call.attr["Tin"].list.type.extend(argument.dtype.as_datatype_enum for argument in arguments)
    call.attr["Tout"].list.type.extend(argument.type for argument in signature.output_arg)
    results: list[tf.Tensor] = tf.graph_util.import_graph_def(
        graph,
        input_map=dict(zip(names, arguments, strict=True)),
        return_elements=[f"body:{i}" for i in range(len(signature.output_arg))],
    )
    return results
