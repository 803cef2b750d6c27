"""split_to_logical_devices(): how a tensor lies on the cores of a replica, said to XLA."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.to_tf._autograph import opaque_to_autograph
from jax2tf_bridge.to_tf._tf_compat_logical_devices import with_sharding


@opaque_to_autograph
def split_to_logical_devices(tensor: Any, partition_dimensions: Sequence[int] | None) -> tf.Tensor:
    """Says to XLA how a tensor is split over the devices of a replica, as TPU inference does.

    As TPUStrategy.experimental_split_to_logical_devices, without a strategy. It is an annotation:
    the values stay as they are, and where XLA compiles for one device it has no effect.

    Args:
      tensor: of a graph, as within a tf.function.
      partition_dimensions: for each dimension of the tensor in how many parts it is split, so
        that their product is the number of devices of a replica; or None, for a copy on each.

    Returns:
      The tensor, annotated.

    Raises:
      ShardingError: partition_dimensions has not one positive integer for each dimension; the
        tensor is eager; or this TF has no such annotation.

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
    tiles = None if partition_dimensions is None else _tiles(partition_dimensions, tensor)
    annotated: tf.Tensor = with_sharding(tensor, tiles)
    return annotated


def _tiles(partition_dimensions: Any, tensor: tf.Tensor) -> tuple[int, ...]:
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
