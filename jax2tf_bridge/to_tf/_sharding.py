"""Functions over several devices: how TensorFlow runs them, and annotations for the TPU."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Sequence
from types import FrameType

import tensorflow as tf

from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._safety_checks import DisabledSafetyCheck
from jax2tf_bridge.portable._sharding import CALLS_OF_PARTS, Sharding
from jax2tf_bridge.portable.bytecode import ModuleSummary, read_module
from jax2tf_bridge.serialization.jax_exported._xla_shardings import (
    is_replicated,
    replace_device_grid,
    to_op_sharding,
)
from jax2tf_bridge.to_tf import _tf_compat

# What TensorFlow's bridge to the TPU looks for; the second one counts if it is there.
_WITH_DEVICE_LIST, _AS_GRID = "_XlaSharding", "_XlaShardingV2"

# Where a function begins and ends to compute on the part of one device, as jax.shard_map has it.
_MANUAL = CALLS_OF_PARTS | {"sdy.manual_computation"}

_ON_TPU = 'on TPU, inside tf.function, with the platforms ["tpu"] alone'
_LIBRARIES = frozenset({"tensorflow", "keras", "jax2tf_bridge"})
# AutoGraph writes the user's functions anew, into temporary files of this name.
_AUTOGRAPH = "__autograph_generated_file"


def check_devices(portable: PortableFunction, *, is_gradient: bool = False) -> None:
    """Warns where TensorFlow runs a sharded function on one device, and raises where it cannot.

    On the TPU, in a graph, TensorFlow shards. Elsewhere it runs all on one device: the values are
    the same, if the function only says where values are. The warning comes once for each function
    and line of the user's.

    Args:
      portable: of the function.
      is_gradient: whether it is called as the gradient of one, which was warned of.

    Raises:
      ShardingError: it computes on the parts of devices by itself; or it has arguments or results
        that are spread, in eager mode.
    """
    if portable.module.nr_devices == 1:
        return
    for_tpu = set(portable.platforms) == {"tpu"} and not tf.executing_eagerly()
    if for_tpu and portable.target.xla:
        return
    over = f"{portable.name} is sharded over {portable.module.nr_devices} devices"
    others = [platform for platform in portable.platforms if platform != "tpu"]
    if _is_manual(read_module(portable.module.data)):
        raise ShardingError(
            f"{over}, and computes on the part of each by itself (jax.shard_map), so that it "
            f"cannot run on one, as {_runs_on(others)} would run it. Export it for serving "
            f"{_ON_TPU}; or over a mesh of one device; or without jax.shard_map, with shardings "
            "alone."
        )
    if DisabledSafetyCheck.shardings() in portable.module.disabled_checks:
        return
    if tf.executing_eagerly() and _is_spread(portable):
        # Programs that ran with jax2tf look for the words up to "context".
        raise ShardingError(
            f"{over}, and was called in eager mode: a function with sharded arguments or results "
            "must be used under a `tf.function` context. Wrap what calls it in tf.function. If "
            "the memory and time of one device are enough, eager mode runs it too with "
            "DisabledSafetyCheck.shardings() among the disabled checks."
        )
    if not is_gradient:
        warnings.warn(
            f"{over}, and {_runs_on(others)} runs it as a whole on one device. The values are the "
            "same. If the memory and time of one device are enough, "
            "DisabledSafetyCheck.shardings() among the disabled checks turns this warning off. "
            f"To run it on all of them, serve it {_ON_TPU}.",
            UserWarning,
            stacklevel=_callers_level(),
        )


def _is_spread(portable: PortableFunction) -> bool:
    """Tells whether an argument that the module takes, or a result, is split over devices."""
    inputs = portable.inputs
    return any(
        port.sharding is not None and not is_replicated(port.sharding, len(port.aval.op_shape))
        for port in (*(inputs[i] for i in portable.module.kept_arguments), *portable.outputs)
    )


def _runs_on(platforms: Sequence[str]) -> str:
    if tf.executing_eagerly():
        return "eager TensorFlow"
    if not platforms:
        return "TensorFlow without XLA"
    *most, last = platforms
    return f"TensorFlow on {', '.join(most) + ' and ' * bool(most)}{last}"


def _callers_level() -> int:
    """Returns the stacklevel of warnings.warn in the calling function, for the line of the user."""
    frame, level = inspect.currentframe(), 0
    while frame is not None and _is_library(frame):
        frame, level = frame.f_back, level + 1
    return max(level, 1)


def _is_library(frame: FrameType) -> bool:
    package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
    return package in _LIBRARIES or _AUTOGRAPH in frame.f_code.co_filename


def annotated(
    portable: PortableFunction,
    tensors: Sequence[tf.Tensor],
    shardings: Sequence[Sharding | None],
    avals: Sequence[Aval],
) -> list[tf.Tensor]:
    """Tensors of a graph with how they are spread, for TensorFlow's tools for the TPU.

    These do not look into the module. Eager tensors, and those that say nothing, come back as
    they are.

    Args:
      portable: of the function, for messages.
      tensors: arguments or results of it.
      shardings: for each of them.
      avals: for each of them.

    Raises:
      ShardingError: one is spread as XLA has no words for.
    """
    if portable.module.nr_devices == 1 or tf.executing_eagerly():
        return list(tensors)
    return [
        tensor if sharding is None else _annotated(portable, tensor, sharding, aval)
        for tensor, sharding, aval in zip(tensors, shardings, avals, strict=True)
    ]


def _annotated(
    portable: PortableFunction, tensor: tf.Tensor, sharding: Sharding, aval: Aval
) -> tf.Tensor:
    as_grid = to_op_sharding(sharding, len(aval.op_shape))
    if as_grid is None:
        raise ShardingError(
            f"{portable.name} has an argument or a result {aval} that is spread as {sharding}, "
            "which XLA's annotations have no words for. Use a sharding without unreduced and "
            "reduced axes."
        )
    listed = replace_device_grid(as_grid)
    attributes = {_WITH_DEVICE_LIST: listed}
    if listed != as_grid:
        attributes[_AS_GRID] = as_grid
    return _tf_compat.xla_sharding(tensor, listed, attributes)


def _is_manual(module: ModuleSummary) -> bool:
    return not _MANUAL.isdisjoint({*module.custom_calls, *module.operations})
