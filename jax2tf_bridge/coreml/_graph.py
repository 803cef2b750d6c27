"""Makes the graph that coremltools reads: in int32, with the names of the signature."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.coreml._loops import rewrite_loops
from jax2tf_bridge.coreml._ranks import MAX_AXES, merge_axes
from jax2tf_bridge.errors import UnsupportedByTargetError
from jax2tf_bridge.frozen_graphs import FrozenGraph, GraphPort
from jax2tf_bridge.to_tensorflow import freeze, list_bodies

_INT32 = tf.int32.as_datatype_enum
_INTEGERS = frozenset(
    dtype.as_datatype_enum
    for dtype in (tf.int8, tf.int16, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)
)
_SCOPE = "function"


def make_graph(frozen: FrozenGraph, shapes: Mapping[str, Sequence[int | None]]) -> Any:
    """Returns a function of a signature's inputs, whose graph coremltools reads.

    coremltools looks up the functions of loops in TensorFlow's context, where they are as long as
    the result exists.

    Args:
      frozen: the graph of the signature.
      shapes: the shapes of the inputs by name; scalars have the shape (1,).

    Raises:
      UnsupportedByTargetError: an array has too many axes.
    """
    _check_axes("input", frozen.inputs)
    _check_axes("output", frozen.outputs)
    graph = type(frozen.graph)()
    graph.CopyFrom(frozen.graph)
    _narrow(graph)
    sizes = {
        port.tensor.partition(":")[0]: tf.TensorShape([] if port.sizes == [] else shapes[name])
        for name, port in frozen.inputs.items()
    }
    narrowed = replace(frozen, graph=graph)
    if merge_axes(graph, sizes):
        narrowed = _inline(_import(narrowed, shapes), frozen)
    rewrite_loops(narrowed.graph)
    return _import(narrowed, shapes)


def _check_axes(side: str, ports: Mapping[str, GraphPort]) -> None:
    for name, port in ports.items():
        if port.sizes is not None and len(port.sizes) > MAX_AXES:
            raise UnsupportedByTargetError(
                f"Core ML has arrays of at most {MAX_AXES} axes, and the {side} {name} has "
                f"{len(port.sizes)}. Reshape it within the function, so that it crosses with "
                "fewer axes.",
                operation=side,
                source=None,
            )


def _inline(function: Any, frozen: FrozenGraph) -> FrozenGraph:
    """Returns the graph of an imported function without calls of functions."""
    inlined = freeze(function, aggressive_inlining=True)

    def make_ports(names: Iterable[str], tensors: Iterable[tf.Tensor]) -> dict[str, GraphPort]:
        pairs = zip(names, tensors, strict=True)
        return {name: GraphPort(x.name, x.dtype, x.shape) for name, x in pairs}

    inputs = make_ports(frozen.inputs, inlined.inputs)
    outputs = make_ports(frozen.outputs, inlined.outputs)
    return FrozenGraph(inlined.graph.as_graph_def(), inputs, outputs)


def _import(frozen: FrozenGraph, shapes: Mapping[str, Sequence[int | None]]) -> Any:
    """Returns a function of a signature's inputs, which computes its graph."""

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        inputs = {
            port.tensor: tf.reshape(tensor, []) if port.sizes == [] else tensor
            for port, tensor in zip(frozen.inputs.values(), tensors, strict=True)
        }
        names = [port.tensor for port in frozen.outputs.values()]
        results = tf.graph_util.import_graph_def(frozen.graph, inputs, names, name=_SCOPE)
        pairs = zip(frozen.outputs, results, strict=True)
        return [tf.identity(result, name) for name, result in pairs]

    specs = [
        tf.TensorSpec(shapes[name], _narrow_dtype(port.dtype), name)
        for name, port in frozen.inputs.items()
    ]
    return tf.compat.v1.wrap_function(call, specs)


def _narrow_dtype(dtype: tf.DType) -> tf.DType:
    return tf.int32 if dtype.as_datatype_enum in _INTEGERS else dtype


def _narrow(graph: Any) -> None:
    """Makes all integers int32, with the same bits; Core ML computes with no others."""
    for function in graph.library.function:
        for argument in (*function.signature.input_arg, *function.signature.output_arg):
            if argument.type in _INTEGERS:
                argument.type = _INT32
    for nodes in list_bodies(graph):
        for node in nodes:
            if node.op == "Const" and node.attr["dtype"].type in _INTEGERS:
                array = tf.make_ndarray(node.attr["value"].tensor)
                proto = tf.make_tensor_proto(array.astype(np.int32), tf.int32, array.shape)
                node.attr["value"].tensor.CopyFrom(proto)
            for name in [name for name in node.attr if name.startswith("_")]:
                del node.attr[name]
            for attribute in node.attr.values():
                if attribute.type in _INTEGERS:
                    attribute.type = _INT32
                if attribute.HasField("list"):
                    dtypes = attribute.list.type
                    dtypes[:] = [_INT32 if dtype in _INTEGERS else dtype for dtype in dtypes]
