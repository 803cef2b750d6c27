"""The private names of TensorFlow that annotate tensors with devices for XLA."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jax2tf_bridge._utils import SeamName
from jax2tf_bridge.errors import ShardingError

_SHARDING = "tensorflow.python.compiler.xla.experimental.xla_sharding"

_TILE = SeamName(_SHARDING, "tile", "2.15 to 2.22", "no tensor can be split: ShardingError")
_REPLICATE = SeamName(
    _SHARDING, "replicate", "2.15 to 2.22", "no tensor can be replicated: ShardingError"
)

SEAM: Sequence[SeamName] = (_TILE, _REPLICATE)


def annotate_sharding(tensor: Any, tiles: Sequence[int] | None) -> Any:
    """Passes a tensor through an XlaSharding op, which no public TensorFlow function creates.

    Args:
      tensor: a tensor in a graph.
      tiles: the number of parts of each dimension; devices are numbered in row-major order. None
        puts a copy on each device.

    Raises:
      ShardingError: this TF has no such op.
    """
    function = (_REPLICATE if tiles is None else _TILE).get()
    if function is None:
        raise ShardingError(
            "This TensorFlow cannot annotate tensors for XLA. Leave out the call of "
            "split_to_logical_devices, or use a TensorFlow from 2.15 to 2.22."
        )
    if tiles is None:
        return function(tensor, use_sharding_op=True)
    devices = np.arange(int(np.prod(tiles))).reshape(tiles)
    return function(tensor, devices, use_sharding_op=True)
