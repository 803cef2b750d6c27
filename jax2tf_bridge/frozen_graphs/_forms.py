"""Chooses forms: which nodes of a graph runtimes with int32 alone compute otherwise."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from jax2tf_bridge.frozen_graphs._kernels import (
    BITS,
    UNSIGNED,
    absolute,
    float_to_unsigned,
    gather_batch,
    logical_xor,
    multiply_bytes,
    negate,
    scatter_add,
    scatter_update,
    unsigned_to_float,
    wrap,
    wrap_result,
)
from jax2tf_bridge.to_tensorflow import (
    FormFunctions,
    Kernel,
    find_attribute,
    find_node_dtype,
    find_op_definition,
    make_form,
)

NARROW = (tf.int8, tf.uint8, tf.int16, tf.uint16)
"""Integers that the runtimes take for int32."""
_OF_NARROW: Mapping[str, Kernel] = MappingProxyType(
    {
        "Abs": absolute,
        "Add": tf.add,
        "AddV2": tf.add,
        "Mul": tf.multiply,
        "Neg": negate,
        "Square": tf.square,
        "Sub": tf.subtract,
        **BITS,
    }
)
"""Kernels of int32 whose results exceed narrow integers."""


_EXACT: Mapping[str, Kernel] = MappingProxyType({"Abs": absolute, "Neg": negate})
"""Kernels of int32 in place of TensorFlow.js' own, which compute in float32."""


def replace_lacking(graph: Any) -> None:
    """Replaces operations that the runtimes lack by their forms, if they have one.

    Args:
      graph: a GraphDef, which is changed in place.
    """
    functions = FormFunctions(graph, "form")
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        makers = {node.name: node for node in nodes}
        for node in nodes:
            kernel = _find_kernel(node, makers)
            if kernel is not None and find_op_definition(node.op) is not None:
                functions.replace(node, make_form(node, kernel))
    graph.library.function.extend(functions.definitions)


def _find_kernel(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    if node.op == "Cast":
        return _cast(node)
    if node.op == "GatherV2":
        return _gather(node, makers)
    if node.op in _PRODUCTS and all(_has_bytes(tensor, makers) for tensor in node.input):
        return _multiply_bytes(node)
    if node.op in _ALWAYS:
        return _ALWAYS[node.op]
    dtype = find_node_dtype(node, "T")
    if dtype is None or not dtype.is_integer:
        return None
    if dtype in NARROW:
        kernel = _OF_NARROW.get(node.op)
        return kernel and wrap_result(kernel, dtype)
    if dtype in (tf.int32, tf.uint32) and node.op in _EXACT:
        return _EXACT[node.op]
    if dtype == tf.uint32 and node.op in UNSIGNED:
        return UNSIGNED[node.op]
    return BITS.get(node.op)


def _cast(node: Any) -> Kernel | None:
    source, result = find_node_dtype(node, "SrcT"), find_node_dtype(node, "DstT")
    if source is None or result is None:
        return None
    if result in NARROW and source not in (tf.bool, result):
        return lambda x: wrap(tf.cast(x, tf.int32), result)
    if source == tf.uint32 and result.is_floating:
        return lambda x: tf.cast(unsigned_to_float(x), result)
    if source.is_floating and result == tf.uint32:
        return lambda x: float_to_unsigned(tf.cast(x, tf.float32))
    return None


def _gather(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    batch_dims = find_attribute(node, "batch_dims").i
    maker = makers.get(node.input[2].partition(":")[0])
    if batch_dims <= 0 or maker is None or maker.op != "Const":
        return None
    if int(tf.make_ndarray(maker.attr["value"].tensor)) != batch_dims:
        return None
    return functools.partial(gather_batch, batch_dims=batch_dims)


_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2")
_MOVES = frozenset({"ExpandDims", "Identity", "Reshape", "Squeeze", "Transpose"})


def _has_bytes(tensor: str, makers: Mapping[str, Any]) -> bool:
    """Returns whether an int32 tensor has numbers of 8 bits."""
    maker = makers.get(tensor.partition(":")[0])
    while maker is not None and maker.op in _MOVES:
        maker = makers.get(maker.input[0].partition(":")[0])
    bytes_ = (tf.int8, tf.uint8)
    return (
        maker is not None
        and maker.op == "Cast"
        and find_node_dtype(maker, "SrcT") in bytes_
        and find_node_dtype(maker, "DstT") == tf.int32
    )


def _multiply_bytes(node: Any) -> Kernel:
    in_batches = node.op != "MatMul"
    flags = ("adj_x", "adj_y") if in_batches else ("transpose_a", "transpose_b")
    left, right = (find_attribute(node, name).b for name in flags)

    def product(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        if in_batches:
            return tf.raw_ops.BatchMatMulV2(x=x, y=y, adj_x=left, adj_y=right)
        return tf.raw_ops.MatMul(a=x, b=y, transpose_a=left, transpose_b=right)

    return functools.partial(multiply_bytes, product=product)


_ALWAYS: Mapping[str, Kernel] = MappingProxyType(
    {
        "LogicalXor": logical_xor,
        "Rint": tf.round,
        "TensorScatterAdd": scatter_add,
        "TensorScatterUpdate": scatter_update,
    }
)
"""Kernels of operations that TensorFlow.js lacks, or computes wrongly, for each dtype."""
