"""split_to_logical_devices(): tells XLA how to split a tensor over the cores of a replica."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.to_tensorflow._autograph import opaque_to_autograph
from jax2tf_bridge.to_tensorflow._tf_compat_logical_devices import annotate_sharding


@opaque_to_autograph
def split_to_logical_devices(tensor: Any, partition_dimensions: Sequence[int] | None) -> tf.Tensor:
    """Annotates a tensor with its split over the devices of a replica, for TPU inference.

    Works like TPUStrategy.experimental_split_to_logical_devices, but without a strategy. It only
    annotates the tensor: the values do not change, and it has no effect if XLA compiles for one
    device.

    Args:
      tensor: a tensor in a graph, as within a tf.function.
      partition_dimensions: the number of parts for each dimension of the tensor. The product is
        the number of devices of a replica. None puts a copy on each device.

    Returns:
      The annotated tensor.

    Raises:
      ShardingError: partition_dimensions does not have one positive integer for each dimension,
        the tensor is eager, or this TF has no such annotation.

    >>> @tf.function
    ... def f(x):
    ...     return split_to_logical_devices(x, (2, 1)) + 1
    >>> f(tf.zeros((2, 1))).numpy().tolist()
    [[1.0], [1.0]]
    """
    tensor = tf.convert_to_tensor(tensor)
    if tf.executing_eagerly():
        raise ShardingError(
            "split_to_logical_devices annotates a tensor of a graph, and was called on an eager "
            "one. Call it within the tf.function that is compiled for the devices."
        )
    tiles = None if partition_dimensions is None else _check_tiles(partition_dimensions, tensor)
    annotated: tf.Tensor = annotate_sharding(tensor, tiles)
    return annotated


def _check_tiles(partition_dimensions: Any, tensor: tf.Tensor) -> tuple[int, ...]:
    try:
        tiles = tuple(map(operator.index, partition_dimensions))
    except TypeError:
        tiles = (0,)
    rank = tensor.shape.rank
    if min(tiles, default=1) < 1 or (rank is not None and len(tiles) != rank):
        raise ShardingError(
            "partition_dimensions of split_to_logical_devices must have one positive integer for "
            f"each dimension of the tensor, which has the shape {tensor.shape}. "
            f"Got: {partition_dimensions!r}"
        )
    return tiles
