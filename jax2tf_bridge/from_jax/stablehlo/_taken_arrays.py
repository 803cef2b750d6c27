"""Keeps large captured arrays out of the module while JAX lowers a function.

JAX would write each array into the module, which is then copied, written and read several times. A
custom call is a placeholder for the array, until it becomes an argument of main or a constant.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax2tf_bridge._dtypes import ALL_DTYPES
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import create_value, custom_call_target

PLACEHOLDER_TARGET = "jax2tf_bridge.constant"
"""Target of the placeholder custom call; its backend_config is the array's number."""

MIN_LIFTED_BYTES = 4096
"""Minimum size in bytes of constants that are taken or lifted."""

# Every TF release that the bridge knows has the dtypes up to this number in types.proto.
_MAX_DTYPE_NUMBER = 25
LIFTED_DTYPES = MappingProxyType(
    {
        row.element_type: row.name
        for row in ALL_DTYPES
        if row.tensorflow is not None and row.tensorflow <= _MAX_DTYPE_NUMBER
    }
)
_LIFTED_NAMES = frozenset(LIFTED_DTYPES.values())
_ELEMENTS_PER_COMPARISON = 1 << 16


class TakenArrays:
    """Arrays of one lowering, numbered in the order in which they were taken."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        # Keyed by id; holding JAX's object keeps its id from being reused.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def take(self, value: Any) -> Any:
        """Creates a placeholder for an array; returns None if JAX should write it as usual."""
        known = self._numbers.get(id(value))
        if known is None:
            array = self._as_large_array(value)
            if array is None:
                return None
            known = self._numbers[id(value)] = (len(self._arrays), value)
            self._arrays.append(array)
        number, _ = known
        array = self._arrays[number]
        kind = ir.RankedTensorType.get(array.shape, mlir.dtype_to_ir_type(array.dtype))
        attributes: dict[str, ir.Attribute] = {
            "call_target_name": ir.StringAttr.get(PLACEHOLDER_TARGET),
            "backend_config": ir.StringAttr.get(str(number)),
        }
        return create_value("stablehlo.custom_call", kind, attributes=attributes)

    def array(self, operation: Any) -> np.ndarray | None:
        """Returns the array of a placeholder; None for other operations."""
        if custom_call_target(operation) != PLACEHOLDER_TARGET:
            return None
        return self._arrays[int(ir.StringAttr(operation.attributes["backend_config"]).value)]

    def _as_large_array(self, value: Any) -> np.ndarray | None:
        # Checked before np.asarray, because copying from another device takes time.
        if isinstance(value, jax.Array) and (
            not value.is_fully_addressable or value.nbytes < MIN_LIFTED_BYTES
        ):
            return None
        array = np.asarray(value)
        if array.nbytes < MIN_LIFTED_BYTES:
            return None
        # JAX writes arrays that repeat values as broadcasts.
        if array.dtype.name not in _LIFTED_NAMES or 0 in array.strides:
            return None
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype or _is_one_value(array):
            return None
        return array


def _is_one_value(array: np.ndarray) -> bool:
    """Returns whether all elements have the same bits."""
    flat = array.reshape(-1)
    width = flat.dtype.itemsize
    for start in range(0, len(flat), _ELEMENTS_PER_COMPARISON):
        rows = flat[start : start + _ELEMENTS_PER_COMPARISON].view(np.uint8).reshape(-1, width)
        if (rows != flat[:1].view(np.uint8)).any():
            return False
    return True
