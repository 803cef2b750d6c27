"""Functions over several devices: what TensorFlow runs of them, and annotates for the TPU."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from jax2tf_bridge._checks import DisabledSafetyCheck
from jax2tf_bridge._errors import ShardingError
from jax2tf_bridge._portable import Aval, PortableFunction
from jax2tf_bridge._sharding import CALLS_OF_PARTS, Sharding
from jax2tf_bridge.serialization._bytecode import ModuleSummary, read_module
from jax2tf_bridge.serialization._xla_shardings import op_sharding, with_device_list
from jax2tf_bridge.to_tf import _tf_compat

# What TensorFlow's bridge to the TPU looks for; the second one counts if it is there.
_WITH_DEVICE_LIST, _AS_GRID = "_XlaSharding", "_XlaShardingV2"

# Where a function begins and ends to compute on the part of one device, as jax.shard_map has it.
_MANUAL = CALLS_OF_PARTS | {"sdy.manual_computation"}


def check_devices(record: PortableFunction) -> None:
    """Raises unless TensorFlow runs the function right, and as the user wants it.

    On the TPU, in a graph, TensorFlow shards. Elsewhere it runs all on one device: the values are
    the same, if the function only says where values are, and the user has to allow it.

    Raises:
      ShardingError: it computes on the parts of devices by itself, or that is not allowed.
    """
    if record.nr_devices == 1:
        return
    for_tpu = set(record.platforms) == {"tpu"} and not tf.executing_eagerly()
    if for_tpu:
        return
    over = f"{record.name} is sharded over {record.nr_devices} devices"
    others = [platform for platform in record.platforms if platform != "tpu"]
    tpu = 'on TPU, inside tf.function, with the platforms ["tpu"] alone'
    if _is_manual(read_module(record.module)):
        raise ShardingError(
            f"{over}, and computes on the part of each by itself (jax.shard_map), so that it "
            f"cannot run on one, as {_runs_on(others)} would run it. Export it for serving {tpu}; "
            "or over a mesh of one device; or without jax.shard_map, with shardings alone."
        )
    if DisabledSafetyCheck.shardings() in record.disabled_checks:
        return
    raise ShardingError(
        f"{over}, and {_runs_on(others)} runs it as a whole on one, without its shardings. The "
        "values are the same: if its memory and time are fine, allow it with "
        "DisabledSafetyCheck.shardings() among the disabled checks. Or serve it "
        f"{tpu}; or export it without shardings."
    )


def _runs_on(platforms: Sequence[str]) -> str:
    if tf.executing_eagerly():
        return "eager TensorFlow"
    return f"TensorFlow on {' and '.join(platforms)}"


def annotated(
    record: PortableFunction,
    tensors: Sequence[tf.Tensor],
    shardings: Sequence[Sharding | None],
    avals: Sequence[Aval],
) -> list[tf.Tensor]:
    """Tensors of a graph with how they are spread, for TensorFlow's tools for the TPU.

    These do not look into the module. Eager tensors, and those that say nothing, come back as
    they are.

    Args:
      record: of the function, for messages.
      tensors: arguments or results of it.
      shardings: for each of them.
      avals: for each of them.

    Raises:
      ShardingError: one is spread as XLA has no words for.
    """
    if record.nr_devices == 1 or tf.executing_eagerly():
        return list(tensors)
    return [
        tensor if sharding is None else _annotated(record, tensor, sharding, aval)
        for tensor, sharding, aval in zip(tensors, shardings, avals, strict=True)
    ]


def _annotated(
    record: PortableFunction, tensor: tf.Tensor, sharding: Sharding, aval: Aval
) -> tf.Tensor:
    as_grid = op_sharding(sharding, len(aval.op_shape))
    if as_grid is None:
        raise ShardingError(
            f"{record.name} has an argument or a result {aval} that is spread as {sharding}, "
            "which XLA's annotations have no words for. Use a sharding without unreduced and "
            "reduced axes."
        )
    listed = with_device_list(as_grid)
    attributes = {_WITH_DEVICE_LIST: listed}
    if listed != as_grid:
        attributes[_AS_GRID] = as_grid
    return _tf_compat.xla_sharding(tensor, listed, attributes)


def _is_manual(module: ModuleSummary) -> bool:
    return not _MANUAL.isdisjoint({*module.custom_calls, *module.operations})
