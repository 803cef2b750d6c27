"""Replaces reads of a float's sign bit by an operation on the float.

JAX writes `signbit` as a right shift of the bits. Converters of graphs do not support bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import tensorflow as tf

from jax2tf_bridge.bytecode import Operation, Program
from jax2tf_bridge.errors import FileFormatError
from jax2tf_bridge.to_tensorflow.operations._array import Array, row_of, tf_dtype
from jax2tf_bridge.to_tensorflow.operations._converter_forms import is_negative
from jax2tf_bridge.to_tensorflow.operations._integers import constant_like
from jax2tf_bridge.to_tensorflow.operations._patterns import (
    BROADCASTS,
    Makers,
    number_of,
    rewrite_blocks,
    without_unused,
)
from jax2tf_bridge.to_tensorflow.operations._scope import CONTRADICTIONS, Emitter, Scope
from jax2tf_bridge.to_tensorflow.operations._widening import NARROW_BITS

_SIGN_BIT = "tensorflow.sign_bit"
_BITS = ("bitcast_convert", NARROW_BITS)
_SHIFTS = {"shift_right_arithmetic": -1, "shift_right_logical": 1}
_PARTS = frozenset({*_BITS, "constant", *BROADCASTS})


def with_sign_bits(program: Program) -> Program:
    """Returns the module with the sign of floats as an operation with the result 0, 1 or -1."""
    return rewrite_blocks(program, _rewritten)


def _rewritten(operations: Sequence[Operation], makers: Makers) -> Sequence[Operation]:
    if not any(operation.name in _BITS for operation in operations):
        return operations
    new = [_sign_bit(operation, makers) or operation for operation in operations]
    if all(a is b for a, b in zip(new, operations, strict=True)):
        return operations
    return without_unused(new, lambda operation: operation.name in _PARTS)


def _sign_bit(operation: Operation, makers: Makers) -> Operation | None:
    """Returns the sign operation for a shift to the highest bit of a float; else None."""
    if operation.name not in _SHIFTS or len(operation.operands) != 2:
        return None
    bits, places = operation.operands
    maker = makers.get(bits)
    if maker is None or maker.name not in _BITS or len(maker.operands) != 1:
        return None
    (x,) = maker.operands
    try:
        if row_of(x.tensor.element).kind != "float" or x.tensor.shape != bits.tensor.shape:
            return None
        if number_of(places, makers) != row_of(bits.tensor.element).bits - 1:
            return None
    except (FileFormatError, *CONTRADICTIONS):
        return None  # the emitter of the invalid operation reports it
    name = f"{_SIGN_BIT}{_SHIFTS[operation.name]:+d}"
    return dataclasses.replace(operation, name=name, operands=(x,))


def _emitter(sign: int) -> Emitter:
    def emit(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
        (array,) = operands
        element = operation.results[0].tensor.element
        bit = tf.cast(is_negative(scope.compact(array)), tf_dtype(element))
        return scope.made(bit * constant_like(bit, sign), element, array.sizes)

    return emit


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {f"{_SIGN_BIT}{sign:+d}": _emitter(sign) for sign in _SHIFTS.values()}
)
