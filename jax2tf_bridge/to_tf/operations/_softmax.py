"""Softmax and its logarithm, found by what they are made of: TensorFlow and others have them whole.

JAX writes exp(x - max(x)) / sum(exp(x - max(x))), and x - max(x) - log(sum(exp(x - max(x)))).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.portable.bytecode import (
    Block,
    DenseElements,
    Operation,
    Program,
    TensorType,
    Value,
)
from jax2tf_bridge.to_tf.operations._array import Array
from jax2tf_bridge.to_tf.operations._bodies import Reducer, reducers
from jax2tf_bridge.to_tf.operations._scope import CONTRADICTIONS, Emitter, Scope

_SOFTMAX, _LOG_SOFTMAX = "tensorflow.softmax", "tensorflow.log_softmax"
_STOP_GRADIENT = "jax2tf.stop_gradient"
_ELEMENTS = frozenset({"f32", "f64"})
_MOST_AXES = 4
"""TensorFlow's kernel of oneDNN takes five, and some of LiteRT's four."""
_BROADCASTS = ("broadcast_in_dim", "dynamic_broadcast_in_dim")
_PARTS = frozenset(
    {"subtract", "exponential", "reduce", "maximum", "constant", "log", *_BROADCASTS}
)


def with_softmax(program: Program) -> Program:
    """Returns the module with softmax as an operation, where nothing else takes what it is of."""
    functions = {
        name: dataclasses.replace(function, body=_with_softmax(function.body, {}))
        for name, function in program.functions.items()
    }
    return dataclasses.replace(program, functions=functions)


def _with_softmax(block: Block, constants: Mapping[Value, Operation]) -> Block:
    """Does so in a block and its regions; `constants` are those of the blocks around it."""
    own = {op.results[0]: op for op in block.operations if op.name == "constant" and op.results}
    constants = {**constants, **own}
    operations = tuple(
        dataclasses.replace(
            operation,
            regions=tuple(_with_softmax(region, constants) for region in operation.regions),
        )
        if operation.regions
        else operation
        for operation in block.operations
    )
    if not any(operation.name == "exponential" for operation in operations):
        return dataclasses.replace(block, operations=operations)
    parts = _Parts(operations, constants)
    found = [parts.whole(operation) or operation for operation in operations]
    if any(new is not old for new, old in zip(found, operations, strict=True)):
        found = without_unused(found, lambda op: op.name in _PARTS or _stops_gradient(op))
    return dataclasses.replace(block, operations=tuple(found))


def _operands(operations: Iterable[Operation]) -> Counter[Value]:
    """Counts how often values are taken, in regions as well."""
    counts: Counter[Value] = Counter()
    waiting = list(operations)
    while waiting:
        operation = waiting.pop()
        counts.update(operation.operands)
        waiting.extend(inner for block in operation.regions for inner in block.operations)
    return counts


def without_unused(
    operations: Sequence[Operation], is_part: Callable[[Operation], bool]
) -> list[Operation]:
    """Drops the operations for which `is_part` is true and whose results nothing uses."""
    counts = _operands(operations)
    kept: list[Operation] = []
    for operation in reversed(operations):
        if is_part(operation) and not any(counts[value] for value in operation.results):
            counts.subtract(_operands([operation]))
        else:
            kept.append(operation)
    return kept[::-1]


def _stops_gradient(operation: Operation) -> bool:
    return operation.attributes.get("name") == _STOP_GRADIENT and len(operation.results) == 1


class _Parts:
    """Operations of a block, of which some together are a softmax."""

    def __init__(
        self, operations: Sequence[Operation], constants: Mapping[Value, Operation]
    ) -> None:
        self._makers = {**constants, **{v: op for op in operations for v in op.results}}
        self._counts = _operands(operations)

    def whole(self, operation: Operation) -> Operation | None:
        """Returns the softmax whose last operation this is."""
        try:
            return self._whole(operation)
        except (FileFormatError, *CONTRADICTIONS):
            return None  # the emitter of what is wrong says it

    def _whole(self, operation: Operation) -> Operation | None:
        if len(operation.results) != 1 or not _has_whole(operation.results[0]):
            return None
        match operation.name, operation.operands:
            case "divide", (exponentials, total):
                x = self._softmax(exponentials, total)
                name = _SOFTMAX
            case "subtract", (shifted, logarithm):
                x = self._log_softmax(shifted, logarithm)
                name = _LOG_SOFTMAX
            case _:
                return None
        return None if x is None else dataclasses.replace(operation, name=name, operands=(x,))

    def _softmax(self, exponentials: Value, total: Value) -> Value | None:
        shifted = self._operand(exponentials, "exponential")
        if shifted is None or self._counts[exponentials] != 2 or self._counts[shifted] != 1:
            return None
        if self._reduced(total, "add") is not exponentials:
            return None
        return self._unshifted(shifted)

    def _log_softmax(self, shifted: Value, logarithm: Value) -> Value | None:
        exponentials = self._reduced(logarithm, "add", logarithm=True)
        if exponentials is None or self._operand(exponentials, "exponential") is not shifted:
            return None
        if self._counts[exponentials] != 1 or self._counts[shifted] != 2:
            return None
        return self._unshifted(shifted)

    def _maker(self, value: Value, *names: str) -> Operation | None:
        operation = self._makers.get(value)
        return operation if operation is not None and operation.name in names else None

    def _operand(self, value: Value, name: str) -> Value | None:
        operation = self._maker(value, name)
        return None if operation is None or len(operation.operands) != 1 else operation.operands[0]

    def _unshifted(self, shifted: Value) -> Value | None:
        """Returns what the greatest numbers of the last axis were subtracted from."""
        operation = self._maker(shifted, "subtract")
        if operation is None or len(operation.operands) != 2:
            return None
        x, greatest = operation.operands
        return x if self._reduced(greatest, "maximum") is x else None

    def _reduced(self, value: Value, name: str, *, logarithm: bool = False) -> Value | None:
        """Returns of what `value` repeats the reduction of the last axis in this axis.

        Args:
          value: broadcast.
          name: of the reducer.
          logarithm: whether it is the logarithm of the reduction.
        """
        if not isinstance(value.type, TensorType):
            return None
        places = tuple(range(len(value.type.shape)))  # axes of the result, for those of the value
        rank = len(places)
        while True:
            operation = self._maker(value, *_BROADCASTS, "composite", "log", "maximum", "reduce")
            if operation is None:
                return None
            if operation.name == "reduce":
                break
            if operation.name == "log":
                if not logarithm:
                    return None
                logarithm = False
                (value,) = operation.operands
            elif operation.name == "composite":
                # Softmax changes with its numbers as if their greatest one were a constant.
                if name != "maximum" or not _stops_gradient(operation):
                    return None
                value = operation.operands[-1]
            elif operation.name == "maximum":
                # JAX begins the greatest number with -inf twice.
                left, right = operation.operands
                if self._number(left) == -np.inf:
                    value = right
                elif self._number(right) == -np.inf:
                    value = left
                else:
                    return None
            else:
                value = operation.operands[0]
                places = tuple(places[axis] for axis in operation.ints("broadcast_dimensions"))
        if logarithm or len(operation.operands) != 2 or places != tuple(range(rank - 1)):
            return None
        x, init = operation.operands
        if operation.ints("dimensions") != (rank - 1,) or self._number(init) != _START[name]:
            return None
        is_it = reducers(operation.regions[0]) == [Reducer(name, x.tensor.element)]
        return x if is_it else None

    def _number(self, value: Value) -> float | None:
        """Returns the number that all elements of a constant are."""
        while (operation := self._maker(value, *_BROADCASTS)) is not None:
            value = operation.operands[0]
        operation = self._maker(value, "constant")
        elements = None if operation is None else operation.attributes.get("value")
        if not isinstance(elements, DenseElements) or elements.type.element not in _ELEMENTS:
            return None
        array = elements.array()
        return float(array.reshape(-1)[0]) if array.size and not any(array.strides) else None


_START: Mapping[str, float] = MappingProxyType({"add": 0.0, "maximum": -np.inf})


def _has_whole(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.element not in _ELEMENTS:
        return False
    return len(kind.shape) <= _MOST_AXES


def _emitter(function: Callable[[tf.Tensor], tf.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.made(function(scope.tensor(array)), array.element, array.sizes)

    return emit


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {_SOFTMAX: _emitter(tf.nn.softmax), _LOG_SOFTMAX: _emitter(tf.nn.log_softmax)}
)
