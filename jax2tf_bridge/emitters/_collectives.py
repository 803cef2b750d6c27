"""Collectives, which are identities for functions of a single device."""

from __future__ import annotations

from collections.abc import Sequence

from jax2tf_bridge.bytecode import DenseElements, Operation
from jax2tf_bridge.emitters._array import Array, zeros
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._scope import Scope


def _check_one_device(scope: Scope, operation: Operation, name: str) -> list[int]:
    """Returns an attribute that lists devices.

    Raises:
      ModuleError: it lists several devices.
    """
    value = operation.attributes.get(name)
    devices = value.array().reshape(-1).tolist() if isinstance(value, DenseElements) else []
    if any(device > 0 for device in devices):
        scope.fail(operation, f"it is between the devices {sorted(set(devices))}")
    return [int(device) for device in devices]


@emits(
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_reduce",
    "cross-replica-sum",
    "reduce_scatter",
)
def _identity(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    _check_one_device(scope, operation, "replica_groups")
    # The root's number may follow the operands.
    return operands[: len(operation.results)]


@emits("collective_broadcast", "collective_permute")
def _receive(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    """Returns what the device sends to itself, or zeros if it sends nothing."""
    name = "replica_groups" if operation.name == "collective_broadcast" else "source_target_pairs"
    if _check_one_device(scope, operation, name):
        return operands[:1]
    return [zeros(operands[0].element, operands[0].sizes)]


@emits("partition_id", "replica_id")
def _device_number(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    return zeros("ui32")
