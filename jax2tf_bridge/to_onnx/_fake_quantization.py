"""Rounding to the steps of bytes, as QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jax2tf_bridge.to_onnx._functions import cast, elementwise, function
from jax2tf_bridge.to_onnx._graph import DTYPES, Graph, Node, Tensor
from jax2tf_bridge.to_onnx._movement import reshape

if TYPE_CHECKING:
    import onnx


@function("fake_quantize")
def _fake_quantize(
    graph: Graph,
    x: Tensor,
    scale: Tensor,
    zero_point: Tensor,
    *,
    low: int,
    high: int,
    axis: int | None,
) -> Tensor:
    """Rounds to steps of a scale; TensorFlow has no function that rounds like JAX.

    ONNX Runtime replaces products and convolutions between the two operations by those of bytes.

    Args:
      graph: the graph.
      x: floats.
      scale: the size of a step, one for each element of an axis or one for all.
      zero_point: the step that stands for 0, alike.
      low: the lowest step.
      high: the highest one.
      axis: the axis of the scales; None for one.
    """
    dtype = DTYPES["int8" if low < 0 else "uint8"]
    limits = np.iinfo(dtype.as_numpy_dtype)
    for bound, limit, name in ((low, limits.min, "Max"), (high, limits.max, "Min")):
        if bound != limit:
            x = elementwise(graph, name, x, _find_edge(graph, bound, scale, zero_point))
    sizes = [] if axis is None else [-1]
    step, zero = (_reshape(graph, each, sizes) for each in (scale, zero_point))
    if axis is not None and zero.shape != step.shape:
        zero = elementwise(graph, "Add", zero, elementwise(graph, "Sub", step, step))
    if zero.value is not None:
        zero = graph.constant(zero.value.astype(dtype.as_numpy_dtype))
    operands = [step, cast(graph, zero, dtype)]
    options: dict[str, Any] = {} if axis is None else {"axis": axis}
    rounded = graph.add("QuantizeLinear", [x, *operands], dtype, x.shape, **options)
    return graph.add("DequantizeLinear", [rounded, *operands], x.dtype, x.shape, **options)


def _find_edge(graph: Graph, bound: int, scale: Tensor, zero_point: Tensor) -> Tensor:
    """Returns the number that a step stands for."""
    if scale.value is not None and zero_point.value is not None:
        edge: np.ndarray = (np.float32(bound) - zero_point.value) * scale.value
        return graph.constant(edge.astype(np.float32))
    steps = elementwise(graph, "Sub", np.float32(bound), zero_point)
    return elementwise(graph, "Mul", steps, scale)


def _reshape(graph: Graph, x: Tensor, sizes: list[int]) -> Tensor:
    return reshape(graph, x, sizes) if x.value is None else graph.constant(x.value.reshape(sizes))


def store_bytes(graph: Graph, make_node: Callable[[Node], onnx.NodeProto]) -> None:
    """Computes the bytes of weights, so that the model has them in place of floats.

    Args:
      graph: the finished graph, whose nodes are changed in place.
      make_node: converts a node to ONNX's protocol buffer.
    """
    quantizations = [node for node in graph.nodes if node.operation == "QuantizeLinear"]
    if not quantizations:
        return
    makers = {name: node for node in graph.nodes for name in node.outputs}
    for node in quantizations:
        parts = _list_constant_parts(node, graph, makers)
        if parts is None:
            continue
        names = (*node.outputs, *node.inputs[1:])
        for name, value in zip(names, _evaluate(graph, parts, names, make_node), strict=True):
            graph.constants[name] = value
    graph.nodes[:] = [
        node for node in graph.nodes if graph.constants.keys().isdisjoint(node.outputs)
    ]


def _list_constant_parts(node: Node, graph: Graph, makers: dict[str, Node]) -> list[Node] | None:
    """Returns the nodes that make a value of constants, in order; None if it depends on inputs."""
    parts: dict[str, Node] = {}

    def visit(each: Node) -> bool:
        if each.name in parts:
            return True
        for name in filter(None, each.inputs):
            if name in graph.constants:
                continue
            if name not in makers or not visit(makers[name]):
                return False
        parts[each.name] = each
        return True

    return list(parts.values()) if visit(node) else None


def _evaluate(
    graph: Graph,
    nodes: list[Node],
    names: tuple[str, ...],
    make_node: Callable[[Node], onnx.NodeProto],
) -> Iterator[np.ndarray]:
    from onnx import TypeProto, ValueInfoProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    known = [name for name in names if name in graph.constants]
    outputs = [name for name in names if name not in known]
    used = {name for node in nodes for name in node.inputs} & graph.constants.keys()
    made = helper.make_graph(
        [make_node(node) for node in nodes],
        "weights",
        [],
        [ValueInfoProto(name=name, type=TypeProto()) for name in outputs],
        [
            numpy_helper.from_array(
                np.ascontiguousarray(graph.constants[n]).reshape(graph.constants[n].shape), n
            )
            for n in sorted(used)
        ],
    )
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", graph.opset)])
    values = dict(zip(outputs, ReferenceEvaluator(model).run(None, {}), strict=True))
    for name in names:
        yield values[name] if name in values else graph.constants[name]
