"""Recognizes softmax and its logarithm, for which TensorFlow and others have single operations.

JAX writes exp(x - max(x)) / sum(exp(x - max(x))), and x - max(x) - log(sum(exp(x - max(x)))).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
import tensorflow as tf

from jax2tf_bridge.bytecode import Operation, Program, TensorType, Value
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._bodies import Reducer, reducers
from jax2tf_bridge.to_tensorflow.operations._patterns import (
    BROADCASTS,
    Makers,
    number_of,
    operand_counts,
    rewrite_blocks,
    without_unused,
)
from jax2tf_bridge.to_tensorflow.operations._scope import CONTRADICTIONS, Emitter, Scope

_SOFTMAX, _LOG_SOFTMAX = "tensorflow.softmax", "tensorflow.log_softmax"
_STOP_GRADIENT = "jax2tf.stop_gradient"
_ELEMENTS = frozenset({"f32", "f64"})
_MAX_AXES = 4
"""Maximum rank: oneDNN's kernel in TensorFlow supports five axes, some LiteRT kernels four."""
_PARTS = frozenset({"subtract", "exponential", "reduce", "maximum", "constant", "log", *BROADCASTS})


def with_softmax(program: Program) -> Program:
    """Returns the module with softmax as an operation, if its parts have no other uses."""
    return rewrite_blocks(program, _rewritten)


def _rewritten(operations: Sequence[Operation], makers: Makers) -> Sequence[Operation]:
    if not any(operation.name == "exponential" for operation in operations):
        return operations
    parts = _Parts(operations, makers)
    new = [parts.whole(operation) or operation for operation in operations]
    if all(a is b for a, b in zip(new, operations, strict=True)):
        return operations
    return without_unused(new, lambda each: each.name in _PARTS or _stops_gradient(each))


def _stops_gradient(operation: Operation) -> bool:
    return operation.attributes.get("name") == _STOP_GRADIENT and len(operation.results) == 1


class _Parts:
    """Matcher of softmax among the operations of a block."""

    def __init__(self, operations: Sequence[Operation], makers: Makers) -> None:
        self._makers, self._counts = makers, operand_counts(operations)

    def whole(self, operation: Operation) -> Operation | None:
        """Returns the softmax of which this is the last operation; else None."""
        try:
            return self._whole(operation)
        except (FileFormatError, *CONTRADICTIONS):
            return None  # the emitter of the invalid operation reports it

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
        """Returns the value before the maxima of the last axis were subtracted; None for others."""
        operation = self._maker(shifted, "subtract")
        if operation is None or len(operation.operands) != 2:
            return None
        x, greatest = operation.operands
        return x if self._reduced(greatest, "maximum") is x else None

    def _reduced(self, value: Value, name: str, *, logarithm: bool = False) -> Value | None:
        """Returns the operand of a reduction of the last axis that `value` broadcasts; else None.

        Args:
          value: the broadcast value.
          name: the name of the reducer.
          logarithm: whether `value` is the logarithm of the reduction.
        """
        if not isinstance(value.type, TensorType):
            return None
        places = tuple(
            range(len(value.type.shape))
        )  # maps the axes of the value to those of the result
        rank = len(places)
        while True:
            operation = self._maker(value, *BROADCASTS, "composite", "log", "maximum", "reduce")
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
                # The gradient of softmax does not depend on the maximum, so it may be constant.
                if name != "maximum" or not _stops_gradient(operation):
                    return None
                value = operation.operands[-1]
            elif operation.name == "maximum":
                # JAX takes the maximum with -inf twice.
                left, right = operation.operands
                if number_of(left, self._makers) == -np.inf:
                    value = right
                elif number_of(right, self._makers) == -np.inf:
                    value = left
                else:
                    return None
            else:
                value = operation.operands[0]
                places = tuple(places[axis] for axis in operation.ints("broadcast_dimensions"))
        if logarithm or len(operation.operands) != 2 or places != tuple(range(rank - 1)):
            return None
        x, init = operation.operands
        if operation.ints("dimensions") != (rank - 1,):
            return None
        if number_of(init, self._makers) != _START[name]:
            return None
        is_it = reducers(operation.regions[0]) == [Reducer(name, x.tensor.element)]
        return x if is_it else None


_START: Mapping[str, float] = MappingProxyType({"add": 0.0, "maximum": -np.inf})


def _has_whole(value: Value) -> bool:
    kind = value.type
    if not isinstance(kind, TensorType) or kind.element not in _ELEMENTS:
        return False
    return len(kind.shape) <= _MAX_AXES


def _emitter(function: Callable[[tf.Tensor], tf.Tensor]) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        return scope.made(function(scope.tensor(array)), array.element, array.sizes)

    return emit


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {_SOFTMAX: _emitter(tf.nn.softmax), _LOG_SOFTMAX: _emitter(tf.nn.log_softmax)}
)
