"""Calls of functions, custom calls and composites; tuples, tokens, and collectives."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jax2tf_bridge._operations import COMPOSITES, CUSTOM_CALLS, Composite
from jax2tf_bridge.bytecode import STOP_GRADIENT, DenseElements, Operation, OtherType, Value
from jax2tf_bridge.emitters._array import Array, Arrays, zeros
from jax2tf_bridge.emitters._ops import ops
from jax2tf_bridge.emitters._scope import Scope, emits
from jax2tf_bridge.portable import CALL_TF_TARGET, SHARD_MAP_CALLS

TOKEN = Array("token", ())
"""Value of all tokens: TensorFlow orders operations by inputs, and effects are rejected."""


def is_token(value: Value) -> bool:
    """Returns whether a value is a token."""
    return isinstance(value.type, OtherType) and value.type.text == "!stablehlo.token"


def read_mapping(operation: Operation, *names: str) -> Mapping[str, Any]:
    """Returns the first of the attributes `names` that is a dictionary; an empty one if none is."""
    attributes = map(operation.attributes.get, names)
    return next((each for each in attributes if isinstance(each, Mapping)), {})


@emits("call")
def _call(scope: Scope, operation: Operation, operands: Arrays) -> list[Array]:
    return call(scope, operation, operation.text("callee"), operands)


def decompose(scope: Scope, operation: Operation) -> list[Array]:
    """Converts the decomposition of a composite, for operands without another form."""
    operands = [scope.array(value) for value in operation.operands]
    return call(scope, operation, operation.text("decomposition"), operands)


def call(scope: Scope, operation: Operation, name: str, operands: Arrays) -> list[Array]:
    """Converts a function of the module in place of an operation."""
    function = scope.program.functions.get(name)
    if function is None:
        scope.fail(operation, f"the module has no function {name!r}")
    n_taken = len(function.body.arguments)
    if len(operands) != n_taken:
        scope.fail(
            operation, f"it passes {len(operands)} arguments to {name!r}, which takes {n_taken}"
        )
    if name in scope.callers:
        scope.fail(operation, "the module's functions call each other in a circle")
    return scope.new_call(name, operation).run(function.body, operands)


@emits(
    "Sharding",
    "annotate_device_placement",
    "optimization_barrier",
    "xla.sdy.FuncResultSharding",
)
def _same(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    return operands


@emits("create_token", "after_all")
def _token(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return TOKEN


@dataclass(frozen=True, eq=False)
class _Tuple(Array):
    """Tuple of arrays."""

    items: tuple[Array, ...] = ()


@emits("tuple")
def _tuple(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return _Tuple("tuple", (), items=tuple(operands))


@emits("get_tuple_element")
def _tuple_element(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (whole,) = operands
    if not isinstance(whole, _Tuple):
        scope.fail(operation, "its operand was not made by stablehlo.tuple")
    return whole.items[operation.int("index")]


# Custom calls and composites.

_PLACE = re.compile(r"\{(\d{1,3})\}")
"""Placeholder of a size in the message of an assertion."""


@emits("shape_assertion")
def _shape_assertion(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    holds, *sizes = operands
    if not holds.scalar:
        text = operation.attributes.get("error_message")
        pieces = _PLACE.split(text if isinstance(text, str) else "the sizes do not fit")
        # Every other piece is the index of a size.
        message = [
            scope.tensor(sizes[int(piece)]) if i % 2 and int(piece) < len(sizes) else piece
            for i, piece in enumerate(pieces)
        ]
        ops.debugging.Assert(scope.tensor(holds), message)
    return ()


@emits(*SHARD_MAP_CALLS)
def _on_one_device(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    """Converts between a whole array and a device's part, which are the same on one device.

    Raises:
      ModuleError: there are several devices.
    """
    if any(a.type != b.type for a, b in zip(operation.operands, operation.results, strict=True)):
        scope.fail(operation, "several devices compute a part each (jax.shard_map)")
    return operands


@emits(CALL_TF_TARGET)
def _graph_function(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    """Calls a TensorFlow function, from call_tf with call_tf_graph=True."""
    number = read_mapping(operation, "tf.backend_config").get("called_index")
    if not isinstance(number, int) or not 0 <= number < len(scope.graph_functions):
        scope.fail(
            operation, f"it calls TensorFlow function {number} of {len(scope.graph_functions)}"
        )
    # Open sizes of results are further operands, which the function does not take.
    has_shapes = "indices_of_shape_operands" in operation.attributes
    shapes = operation.ints("indices_of_shape_operands") if has_shapes else ()
    taken = [
        scope.tensor(array)
        for i, (value, array) in enumerate(zip(operation.operands, operands, strict=True))
        if i not in shapes and not is_token(value)
    ]
    results = [value for value in operation.results if not is_token(value)]
    tensors = scope.graph_functions[number](*taken)[: len(results)]
    arrays = {}
    for i, (value, tensor) in enumerate(zip(results, tensors, strict=True)):
        kind = value.tensor
        if shapes:
            sizes = scope.sizes_of(operands[shapes[i]], kind.shape)
            arrays[value] = scope.new_array(tensor, kind.element, sizes)
        else:
            arrays[value] = scope.measure(tensor, kind.element, kind.shape)
    return [arrays.get(value, TOKEN) for value in operation.results]


@emits(STOP_GRADIENT)
def _stop_gradient(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    (array,) = operands
    if array.computed is None:
        return array
    return Array(array.element, array.sizes, ops.stop_gradient(array.computed))


@emits("custom_call")
def _custom_call(scope: Scope, operation: Operation, operands: Arrays) -> Arrays | Array:
    target = operation.text("call_target_name")
    emitter = scope.emitters.get(target) if target in CUSTOM_CALLS else None
    if emitter is None:
        scope.fail(
            operation, f"the custom call {target!r} has no form in {scope.runtime}'s operations"
        )
    return emitter(scope, operation, operands)


@emits("composite")
def _composite(scope: Scope, operation: Operation, operands: Arrays) -> Arrays | Array:
    row = COMPOSITES.get(operation.text("name"))
    if row is None or not _has_form(scope, row):
        return decompose(scope, operation)
    n_sizes = read_mapping(operation, "composite_attributes").get("sizes", 0)
    # The sizes before the operands are only for the decomposition.
    operands = operands[n_sizes if isinstance(n_sizes, int) else 0 :]
    return scope.emitters[row.name](scope, operation, operands)


def _has_form(scope: Scope, row: Composite) -> bool:
    if scope.for_converters or scope.for_onnx:
        return row.for_converters
    return row.for_litert or not scope.is_for_any_converter


# Collectives, which are identities for functions of a single device.


def _check_one_device(scope: Scope, operation: Operation, name: str) -> list[int]:
    """Returns an attribute that lists devices.

    Raises:
      ModuleError: it lists several devices.
    """
    value = operation.attributes.get(name)
    devices = value.array().reshape(-1).tolist() if isinstance(value, DenseElements) else []
    if any(device > 0 for device in devices):
        scope.fail(operation, f"it connects the devices {sorted(set(devices))}")
    return [int(device) for device in devices]


@emits(
    "all_gather",
    "all_reduce",
    "all_to_all",
    "collective_reduce",
    "cross-replica-sum",
    "reduce_scatter",
)
def _identity(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    _check_one_device(scope, operation, "replica_groups")
    # The root's number may follow the operands.
    return operands[: len(operation.results)]


@emits("collective_broadcast", "collective_permute")
def _receive(scope: Scope, operation: Operation, operands: Arrays) -> Arrays:
    """Returns what the device sends to itself, or zeros if it sends nothing."""
    name = "replica_groups" if operation.name == "collective_broadcast" else "source_target_pairs"
    if _check_one_device(scope, operation, name):
        return operands[:1]
    return [zeros(operands[0].element, operands[0].sizes)]


@emits("partition_id", "replica_id")
def _device_number(scope: Scope, operation: Operation, operands: Arrays) -> Array:
    return zeros("ui32")
