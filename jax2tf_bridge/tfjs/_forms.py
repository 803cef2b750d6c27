"""Replaces operations that TensorFlow.js 4.22 computes wrongly, mostly in its backend "wasm"."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from jax2tf_bridge.to_tensorflow import (
    Kernel,
    find_attribute,
    find_constant,
    find_node_dtype,
    run_node,
)


def find_kernel(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    """Returns the function that replaces a node; None if TensorFlow.js computes it correctly."""
    dtype = find_node_dtype(node, "T")
    if node.op == "StridedSlice" and dtype is not None and not dtype.is_floating:
        return _find_slice(node, makers)
    if node.op == "SelectV2" and dtype == tf.bool:
        return select_bools
    if node.op in ("Maximum", "Minimum") and dtype is not None and dtype.is_floating:
        return functools.partial(keep_nan, node, is_second_finite=_is_finite(node.input[1], makers))
    if node.op in ("Relu6", "Sign") and dtype is not None and dtype.is_floating:
        return lambda x: tf.where(tf.math.is_nan(x), x, run_node(node, [x]))
    if node.op == "Cast" and find_node_dtype(node, "DstT") == tf.int32:
        source = find_node_dtype(node, "SrcT")
        return saturate if source is not None and source.is_floating else None
    return None


def slice_by_steps(
    x: tf.Tensor,
    begin: tf.Tensor,
    end: tf.Tensor,
    steps: tf.Tensor,
    *,
    strides: Sequence[int],
    begin_mask: int,
    end_mask: int,
) -> tf.Tensor:
    """Slices integers and bools, of which WebAssembly makes float32 if it skips elements.

    The tensors and masks are those of StridedSlice; `strides` has the values of `steps`.
    """
    for axis, stride in enumerate(strides):
        if stride == 1:
            continue
        is_forward, size = stride > 0, tf.shape(x)[axis]
        first, last = begin[axis], end[axis]
        if begin_mask >> axis & 1:
            first = tf.constant(0) if is_forward else tf.subtract(size, 1)
        if end_mask >> axis & 1:
            last = size if is_forward else tf.constant(-1)
        x = tf.gather(x, tf.range(first, last, stride), axis=axis)
    whole = sum(1 << axis for axis, stride in enumerate(strides) if stride != 1)
    return tf.strided_slice(
        x, begin, end, tf.ones_like(steps), begin_mask | whole, end_mask | whole
    )


def select_bools(condition: tf.Tensor, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Selects bools, which WebAssembly reads and writes as four bytes each."""
    return tf.logical_or(tf.logical_and(condition, x), tf.logical_and(tf.logical_not(condition), y))


def keep_nan(node: Any, x: tf.Tensor, y: tf.Tensor, *, is_second_finite: bool) -> tf.Tensor:
    """Computes a maximum or minimum of floats; WebAssembly drops NaN in the second operand."""
    result = run_node(node, [x, y])
    return result if is_second_finite else tf.where(tf.math.is_nan(y), y, result)


def saturate(x: tf.Tensor) -> tf.Tensor:
    """Converts floats to int32, where JavaScript wraps numbers below -2**31 around."""
    return tf.cast(tf.maximum(x, tf.constant(-(2.0**31), x.dtype)), tf.int32)


def _find_slice(node: Any, makers: Mapping[str, Any]) -> Kernel | None:
    strides = find_constant(node.input[3], makers)
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    if strides is None or (strides == 1).all() or any(find_attribute(node, n).i for n in others):
        return None
    return functools.partial(
        slice_by_steps,
        strides=tuple(strides.tolist()),
        begin_mask=find_attribute(node, "begin_mask").i,
        end_mask=find_attribute(node, "end_mask").i,
    )


def _is_finite(tensor: str, makers: Mapping[str, Any]) -> bool:
    constant = find_constant(tensor, makers)
    return constant is not None and not np.isnan(constant.astype(np.float64)).any()
