"""Rounding to the steps of bytes, as QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jax2tf_bridge.to_onnx._functions import cast, elementwise, function
from jax2tf_bridge.to_onnx._graph import DTYPES, OnnxGraph, OnnxNode, Tensor
from jax2tf_bridge.to_onnx._movement import reshape

if TYPE_CHECKING:
    import onnx


@function("fake_quantize")
def _fake_quantize(
    graph: OnnxGraph,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    *,
    low: int,
    high: int,
    axis: int | None,
) -> Tensor:
    """Rounds to steps of a scale; TensorFlow has no function that rounds like JAX.

    ONNX Runtime replaces a product between DequantizeLinear and QuantizeLinear by one of bytes, but
    only if QuantizeLinear follows directly. So narrow bounds and a ReLU clip the bytes, not the
    floats.

    Args:
      graph: the graph.
      x: floats.
      scale: the size of a step, one for each element of an axis or one for all.
      zero_point: the step that stands for 0, one for each element of the axis or one for all.
      low: the lowest step.
      high: the highest one.
      axis: the axis of the scales; None for one.
    """
    if axis is None and low < 0:
        # ONNX Runtime has the fastest kernels for uint8 by int8, and weights have an axis.
        low, high = low + 128, high + 128
        zero_point = (
            elementwise(graph, "Add", zero_point, np.float32(128))
            if zero_point.value is None
            else graph.constant(zero_point.value + np.float32(128))
        )
    dtype = DTYPES["int8" if low < 0 else "uint8"]
    limits = np.iinfo(dtype.as_numpy_dtype)
    sizes = [] if axis is None else [-1]
    step, zero = (_reshape(graph, each, sizes) for each in (scale, zero_point))
    if axis is not None and zero.shape != step.shape:
        zero = elementwise(graph, "Add", zero, elementwise(graph, "Sub", step, step))
    if zero.value is not None:
        zero = graph.constant(zero.value.astype(dtype.as_numpy_dtype))
    operands = [step, cast(graph, zero, dtype)]
    options: dict[str, Any] = {} if axis is None else {"axis": axis}
    relu = graph.find_last_maker(x, "Relu") if axis is None else None
    inner = x if relu is None else Tensor(graph, relu.inputs[0], x.dtype, x.shape)
    steps = graph.add("QuantizeLinear", [inner, *operands], dtype, x.shape, **options)
    if relu is not None:
        steps = elementwise(graph, "Max", steps, operands[1])
    if low > limits.min and relu is None:
        steps = elementwise(graph, "Max", steps, low)
    if high < limits.max:
        steps = elementwise(graph, "Min", steps, high)
    return graph.add("DequantizeLinear", [steps, *operands], x.dtype, x.shape, **options)


def _reshape(graph: OnnxGraph, x: Tensor, sizes: list[int]) -> Tensor:
    return reshape(graph, x, sizes) if x.value is None else graph.constant(x.value.reshape(sizes))


def store_bytes(graph: OnnxGraph, make_node: Callable[[OnnxNode], onnx.NodeProto]) -> None:
    """Stores the weights that are rounded to bytes as bytes, in place of floats.

    Args:
      graph: the finished graph, whose nodes are changed in place.
      make_node: converts a node to ONNX's protocol buffer.
    """
    makers = {name: node for node in graph.nodes for name in node.outputs}
    for node in graph.nodes:
        if node.operation != "DequantizeLinear":
            continue
        parts = _list_constant_parts(node, graph, makers)
        if parts is not None:
            graph.constants.update(_evaluate(graph, parts, node.inputs, make_node))
    graph.nodes[:] = [
        node for node in graph.nodes if graph.constants.keys().isdisjoint(node.outputs)
    ]


def _list_constant_parts(
    node: OnnxNode, graph: OnnxGraph, makers: dict[str, OnnxNode]
) -> list[OnnxNode] | None:
    """Returns the nodes before a node, in order; None if one depends on inputs."""
    parts: dict[str, OnnxNode] = {}

    def visit(each: OnnxNode) -> bool:
        if each.name in parts:
            return True
        inputs = (name for name in filter(None, each.inputs) if name not in graph.constants)
        if not all(name in makers and visit(makers[name]) for name in inputs):
            return False
        parts[each.name] = each
        return True

    return list(parts.values())[:-1] if visit(node) else None


def _evaluate(
    graph: OnnxGraph,
    nodes: list[OnnxNode],
    names: tuple[str, ...],
    make_node: Callable[[OnnxNode], onnx.NodeProto],
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields the values that nodes of constants make, with their names."""
    from onnx import TypeProto, ValueInfoProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    outputs = [name for name in names if name not in graph.constants]
    if not outputs:
        return
    used = {name for node in nodes for name in node.inputs} & graph.constants.keys()
    main = helper.make_graph(
        [make_node(node) for node in nodes],
        "weights",
        [],
        [ValueInfoProto(name=name, type=TypeProto()) for name in outputs],
        [
            numpy_helper.from_array(np.asarray(graph.constants[name], order="C"), name)
            for name in sorted(used)
        ],
    )
    model = helper.make_model(main, opset_imports=[helper.make_opsetid("", graph.opset)])
    yield from zip(outputs, ReferenceEvaluator(model).run(None, {}), strict=True)
