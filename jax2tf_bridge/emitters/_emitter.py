"""Emitters with the names of the operations, composites and custom calls that they convert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._scope import Emitter, Scope


@dataclass(frozen=True)
class OperationEmitter:
    """An emitter that `_table` finds.

    Attributes:
      names: the names of its rows in `jax2tf_bridge._operations`.
      emit: converts an operation.
      for_converters: converts one for tf2onnx and OpenVINO, if they need another emitter.
    """

    names: tuple[str, ...]
    emit: Emitter
    for_converters: Emitter | None

    def __call__(
        self, scope: Scope, operation: Operation, operands: Sequence[Array]
    ) -> Sequence[Array] | Array:
        emit = (scope.for_converters and self.for_converters) or self.emit
        return emit(scope, operation, operands)


def emits(
    *names: str, for_converters: Emitter | None = None
) -> Callable[[Emitter], OperationEmitter]:
    """Makes a function the emitter of the rows `names` of `jax2tf_bridge._operations`.

    Args:
      names: the names of operations, composites and custom calls.
      for_converters: another emitter for tf2onnx and OpenVINO.
    """
    return lambda emit: OperationEmitter(names, emit, for_converters)
