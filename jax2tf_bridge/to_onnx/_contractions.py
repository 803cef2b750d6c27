"""Products of matrices, convolutions and pools."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from jax2tf_bridge.to_onnx._functions import cast, compute, elementwise, find_kernel, function
from jax2tf_bridge.to_onnx._graph import (
    DTYPES,
    OnnxDType,
    OnnxGraph,
    Shape,
    Tensor,
    broadcast_shapes,
)
from jax2tf_bridge.to_onnx._movement import matrix_transpose, squeeze, transpose


@function("linalg.matmul")
def matmul(
    graph: OnnxGraph,
    a: Tensor,
    b: Tensor,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    output_type: OnnxDType | None = None,
) -> Tensor:
    """Multiplies matrices, and broadcasts the axes before them.

    `output_type` is int32 for products of bytes, as in TensorFlow.
    """
    if transpose_a or adjoint_a:
        a = matrix_transpose(graph, a)
    if transpose_b or adjoint_b:
        b = matrix_transpose(graph, b)
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    shape = (*batch, a.shape[-2], b.shape[-1])
    if output_type is not None:
        return _add_byte_product(graph, "MatMulInteger", a, b, shape)
    return compute(graph, "MatMul", [a, b], shape, keeps_bits=True)


def _add_byte_product(
    graph: OnnxGraph,
    operation: str,
    a: Tensor,
    b: Tensor,
    shape: Sequence[int | None],
    **options: Any,
) -> Tensor:
    """Adds a product of int8 or uint8 with sums in int32.

    Both are passed as uint8. For int8, ONNX Runtime saturates sums of two products on processors
    with AVX2 and without VNNI, or has only a slow kernel.
    """
    left, right = (_to_uint8(graph, x) for x in (a, b))
    zero_points = [
        graph.constant(np.array(0 if x is y else 128, np.uint8))
        for x, y in zip((a, b), (left, right), strict=True)
    ]
    return graph.add(operation, [left, right, *zero_points], DTYPES["int32"], shape, **options)


def _to_uint8(graph: OnnxGraph, x: Tensor) -> Tensor:
    """Adds 128 to int8."""
    if x.dtype.name == "uint8":
        return x
    flipped = elementwise(graph, "BitwiseXor", x, np.array(-128, np.int8))
    return graph.add("Cast", [flipped], DTYPES["uint8"], x.shape, to=DTYPES["uint8"])


@function("linalg.matvec")
def _matvec(graph: OnnxGraph, a: Tensor, b: Tensor, transpose_a: bool = False) -> Tensor:
    column = graph.make("expand_dims", b, -1)
    return squeeze(graph, matmul(graph, a, column, transpose_a), -1)


@function("einsum")
def _einsum(graph: OnnxGraph, equation: str, *operands: Tensor) -> Tensor:
    inputs, _, output = equation.replace(" ", "").partition("->")
    sizes: dict[str, int | None] = {}
    for term, operand in zip(inputs.split(","), operands, strict=True):
        for letter, size in zip(term, operand.shape, strict=True):
            sizes[letter] = sizes.get(letter) if size is None else size
    shape = [sizes[letter] for letter in output]
    return compute(graph, "Einsum", operands, shape, equation=equation)


def _to_channels_first(graph: OnnxGraph, x: Tensor) -> Tensor:
    rank = x.shape.rank
    return transpose(graph, x, [0, rank - 1, *range(1, rank - 1)])


def _to_channels_last(graph: OnnxGraph, x: Tensor) -> Tensor:
    rank = x.shape.rank
    return transpose(graph, x, [0, *range(2, rank), 1])


def _compute_size(
    size: int | None, window: int | None, stride: int, dilation: int, pad: int
) -> Any:
    if size is None or window is None:
        return None
    return (size + pad - (window - 1) * dilation - 1) // stride + 1


@function("convolution")
def _convolution(
    graph: OnnxGraph,
    image: Tensor,
    kernel: Tensor,
    *,
    strides: Sequence[int],
    dilations: Sequence[int],
    low: Sequence[int],
    high: Sequence[int],
    groups: int,
) -> Tensor:
    """Convolves over any number of axes; TensorFlow has no single function for it.

    Sums of int8 and uint8 are int32.

    Args:
      graph: the graph.
      image: the image [batch, *spatial, in].
      kernel: the kernel [*spatial, in / groups, out].
      strides: the strides of the window.
      dilations: the dilations of the kernel.
      low: the padding before the image.
      high: the padding after it.
      groups: the number of feature groups.
    """
    n = len(strides)
    first = _to_channels_first(graph, image)
    weights = transpose(graph, kernel, [n + 1, n, *range(n)])
    spatial = [
        _compute_size(size, window, stride, dilation, before + after)
        for size, window, stride, dilation, before, after in zip(
            first.shape[2:], weights.shape[2:], strides, dilations, low, high, strict=True
        )
    ]
    shape = (image.shape[0], kernel.shape[-1], *spatial)
    options: dict[str, Any] = {
        "strides": list(strides),
        "dilations": list(dilations),
        "pads": [*low, *high],
        "group": groups,
    }
    if image.dtype.is_integer:
        result = _add_byte_product(graph, "ConvInteger", first, weights, shape, **options)
    else:
        result = compute(graph, "Conv", [first, weights], shape, **options)
    return _to_channels_last(graph, result)


@function("nn.bias_add")
def _bias_add(graph: OnnxGraph, x: Tensor, bias: Tensor) -> Tensor:
    """Adds a bias to the last axis; that of a convolution becomes its third operand."""
    moved = graph.find_last_maker(x, "Transpose")
    result = None if moved is None else Tensor(graph, moved.inputs[0], x.dtype, x.shape)
    convolution = None if result is None else graph.find_last_maker(result, "Conv")
    if moved is None or convolution is None or len(convolution.inputs) > 2 or bias.value is None:
        return elementwise(graph, "Add", x, bias)
    first, weights = (Tensor(graph, name, x.dtype, x.shape) for name in convolution.inputs)
    places = moved.attributes["perm"]
    shape = [x.shape[places.index(axis)] for axis in range(len(places))]
    added = graph.add("Conv", [first, weights, bias], x.dtype, shape, **convolution.attributes)
    return graph.add("Transpose", [added], x.dtype, x.shape, perm=places)


def _pool(
    graph: OnnxGraph,
    x: Tensor,
    ksize: Sequence[int],
    strides: Sequence[int],
    padding: str,
    *,
    operation: str,
) -> Tensor:
    within = find_kernel(operation, x.dtype)
    first = cast(graph, _to_channels_first(graph, x), within)
    window, step = list(ksize[1:3]), list(strides[1:3])
    if padding == "SAME":
        sizes = [None if n is None else -(-n // s) for n, s in zip(x.shape[1:3], step, strict=True)]
        options: dict[str, Any] = {"auto_pad": "SAME_UPPER"}
    else:
        sizes = [
            _compute_size(n, w, s, 1, 0) for n, w, s in zip(x.shape[1:3], window, step, strict=True)
        ]
        options = {}
    shape = Shape((x.shape[0], x.shape[3], *sizes))
    pooled = graph.add(
        operation, [first], within, shape, kernel_shape=window, strides=step, **options
    )
    return cast(graph, _to_channels_last(graph, pooled), x.dtype)


FUNCTIONS = (
    function("nn.max_pool2d")(functools.partial(_pool, operation="MaxPool")),
    function("nn.avg_pool2d")(functools.partial(_pool, operation="AveragePool")),
)
