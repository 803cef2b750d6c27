"""Emitters with the names of the operations, composites and custom calls that they convert."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jax2tf_bridge.bytecode import Operation
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Scope


@dataclass(frozen=True)
class OperationEmitter:
    """An emitter that `_table` finds.

    Attributes:
      names: the names of its rows in `jax2tf_bridge._operations`.
      emit: converts an operation for TensorFlow and LiteRT.
      emit_for_converters: converts one for tf2onnx and OpenVINO.
    """

    names: tuple[str, ...]
    emit: Emitter
    emit_for_converters: Emitter

    def __call__(
        self, scope: Scope, operation: Operation, operands: Sequence[Array]
    ) -> Sequence[Array] | Array:
        """Converts an operation for TensorFlow and LiteRT."""
        return self.emit(scope, operation, operands)


def emits(
    *names: str, for_converters: Emitter | None = None
) -> Callable[[Emitter], OperationEmitter]:
    """Enters an emitter in the table; use it as a decorator of a function of a module.

    Args:
      names: the names of the emitter's rows in `jax2tf_bridge._operations`.
      for_converters: another emitter for tf2onnx and OpenVINO.
    """
    return lambda emit: OperationEmitter(names, emit, for_converters or emit)
