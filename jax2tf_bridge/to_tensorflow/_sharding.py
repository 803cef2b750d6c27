"""Functions over several devices: checks, TPU annotations, split_to_logical_devices()."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Sequence
from types import FrameType
from typing import Any

import tensorflow as tf

from jax2tf_bridge.bytecode import read_summary
from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.portable import (
    SHARD_MAP_CALLS,
    Aval,
    DisabledSafetyCheck,
    PortableFunction,
    Sharding,
)
from jax2tf_bridge.serialization.jax_exported import (
    is_replicated,
    replace_device_grid,
    to_op_sharding,
)
from jax2tf_bridge.to_tensorflow import _tf_compat
from jax2tf_bridge.to_tensorflow._tf_functions import opaque_to_autograph

# Attributes that TensorFlow's TPU bridge reads; the second one takes precedence.
_WITH_DEVICE_LIST, _WITH_DEVICE_GRID = "_XlaSharding", "_XlaShardingV2"

# Calls and operations of jax.shard_map, whose functions compute on the part of one device.
_MANUAL_OPERATIONS = SHARD_MAP_CALLS | {"sdy.manual_computation"}

_ON_TPU = 'on TPU, inside tf.function, exported with platforms=["tpu"]'
_LIBRARIES = frozenset({"tensorflow", "keras", "jax2tf_bridge"})
# AutoGraph writes converted user functions into temporary files with this name.
_AUTOGRAPH = "__autograph_generated_file"


def check_devices(portable: PortableFunction, *, is_gradient: bool) -> None:
    """Warns if TensorFlow runs a sharded function on one device, and raises if it cannot.

    TensorFlow shards functions on the TPU, in a graph. Elsewhere it runs them on one device. The
    values are the same, unless the function computes on parts (jax.shard_map). The warning is shown
    once for each function and line of the user's code.

    Args:
      portable: the function.
      is_gradient: whether it is a gradient, whose function has caused the warning already.

    Raises:
      ShardingError: the function computes on the parts of devices (jax.shard_map), or, in eager
        mode, it has sharded arguments or results.
    """
    if portable.module.nr_devices == 1:
        return
    for_tpu = set(portable.platforms) == {"tpu"} and not tf.executing_eagerly()
    if for_tpu and portable.target.xla:
        return
    subject = f"{portable.name} is sharded over {portable.module.nr_devices} devices"
    other_platforms = [platform for platform in portable.platforms if platform != "tpu"]
    summary = read_summary(portable.module.data)
    if not _MANUAL_OPERATIONS.isdisjoint({*summary.custom_calls, *summary.operations}):
        raise ShardingError(
            f"{subject}, and computes on each device's part separately (jax.shard_map), so it "
            f"cannot run on one device, as {_name_runtime(other_platforms)} would. Serve it "
            f"{_ON_TPU}; or export it over a mesh of one device, or without jax.shard_map, with "
            "shardings only."
        )
    if DisabledSafetyCheck.shardings() in portable.module.disabled_checks:
        return
    if tf.executing_eagerly() and _is_spread(portable):
        # Programs written for jax2tf match the message up to the word "context".
        raise ShardingError(
            f"{subject}, and was called in eager mode: a function with sharded arguments or "
            "results must be used under a `tf.function` context. Wrap the call in tf.function. If "
            "the memory and time of one device are enough, eager mode runs it too with "
            "DisabledSafetyCheck.shardings() among the disabled checks."
        )
    if not is_gradient:
        warnings.warn(
            f"{subject}, and {_name_runtime(other_platforms)} runs it as a whole on one device. "
            "The values are the same. If the memory and time of one device are enough, "
            "DisabledSafetyCheck.shardings() among the disabled checks turns this warning off. "
            f"To run it on all of them, serve it {_ON_TPU}.",
            UserWarning,
            stacklevel=_find_user_stacklevel(),
        )


def _is_spread(portable: PortableFunction) -> bool:
    """Returns whether an argument that the module takes, or a result, is split over devices."""
    inputs = portable.inputs
    return any(
        port.sharding is not None and not is_replicated(port.sharding, len(port.aval.op_shape))
        for port in (*(inputs[i] for i in portable.module.kept_arguments), *portable.outputs)
    )


def _name_runtime(platforms: Sequence[str]) -> str:
    if tf.executing_eagerly():
        return "eager TensorFlow"
    if not platforms:
        return "TensorFlow without XLA"
    *first, last = platforms
    return f"TensorFlow on {', '.join(first) + ' and ' * bool(first)}{last}"


def _find_user_stacklevel() -> int:
    """Returns the stacklevel at which a warning of the caller shows the user's line."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and _is_library(frame):
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES or _AUTOGRAPH in frame.f_code.co_filename


def annotate_shardings(
    portable: PortableFunction,
    tensors: Sequence[tf.Tensor],
    shardings: Sequence[Sharding | None],
    avals: Sequence[Aval],
) -> list[tf.Tensor]:
    """Annotates graph tensors with their shardings, for TensorFlow's TPU tools.

    The tools do not read the module. Eager tensors and tensors without a sharding are returned
    unchanged.

    Args:
      portable: the function, for messages.
      tensors: arguments or results of the function.
      shardings: the sharding of each tensor, or None.
      avals: the type of each tensor.

    Raises:
      ShardingError: XLA's annotations cannot express a sharding.
    """
    if portable.module.nr_devices == 1 or tf.executing_eagerly():
        return list(tensors)
    return [
        tensor if sharding is None else _annotate(portable, tensor, sharding, aval)
        for tensor, sharding, aval in zip(tensors, shardings, avals, strict=True)
    ]


def _annotate(
    portable: PortableFunction, tensor: tf.Tensor, sharding: Sharding, aval: Aval
) -> tf.Tensor:
    grid_sharding = to_op_sharding(sharding, len(aval.op_shape))
    if grid_sharding is None:
        raise ShardingError(
            f"{portable.name} has an argument or a result {aval} with the sharding {sharding}, "
            "which XLA's annotations cannot express. Use a sharding without unreduced and reduced "
            "axes."
        )
    list_sharding = replace_device_grid(grid_sharding)
    attributes = {_WITH_DEVICE_LIST: list_sharding}
    if list_sharding != grid_sharding:
        attributes[_WITH_DEVICE_GRID] = grid_sharding
    return _tf_compat.add_xla_sharding(tensor, list_sharding, attributes)


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
    annotated: tf.Tensor = _tf_compat.annotate_logical_devices(tensor, tiles)
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
