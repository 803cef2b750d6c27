"""Large arrays that a function captured, kept out of the module while JAX lowers it.

JAX writes each into the module, which is then copied, written and read several times. Instead a
call of CONSTANT stands for it there, until it becomes an argument of main, or a constant after all.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax.interpreters import mlir

from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import custom_call_target
from jax2tf_bridge.portable._dtypes import ALL_DTYPES

CONSTANT = "jax2tf_bridge.constant"
"""Target of the custom call that stands for an array; its configuration is the array's number."""

LEAST_BYTES = 4096
"""Smaller constants stay in the module."""

# Every TF release that the bridge knows has the dtypes up to this number, as arguments too.
_LAST_NUMBER = 25
LIFTED_DTYPES = MappingProxyType(
    {
        row.element_type: row.name
        for row in ALL_DTYPES
        if row.tensorflow is not None and row.tensorflow <= _LAST_NUMBER
    }
)
_NAMES = frozenset(LIFTED_DTYPES.values())
_COMPARED_AT_ONCE = 1 << 16


class TakenArrays:
    """Arrays of one lowering, by the numbers that stand for them in the module."""

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        # With what JAX has, which keeps its identity from being that of something else.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def take(self, value: Any) -> Any:
        """Returns an array's value in the module; None for those that JAX shall write there."""
        known = self._numbers.get(id(value))
        if known is None:
            array = self._large(value)
            if array is None:
                return None
            known = self._numbers[id(value)] = (len(self._arrays), value)
            self._arrays.append(array)
        number, _ = known
        array = self._arrays[number]
        kind = ir.RankedTensorType.get(array.shape, mlir.dtype_to_ir_type(array.dtype))
        attributes: dict[str, ir.Attribute] = {
            "call_target_name": ir.StringAttr.get(CONSTANT),
            "backend_config": ir.StringAttr.get(str(number)),
        }
        return ir.Operation.create(
            "stablehlo.custom_call", results=[kind], attributes=attributes
        ).results[0]

    def array(self, operation: Any) -> np.ndarray | None:
        """Returns the array for which an operation stands; None if it stands for none."""
        if custom_call_target(operation) != CONSTANT:
            return None
        return self._arrays[int(ir.StringAttr(operation.attributes["backend_config"]).value)]

    def _large(self, value: Any) -> np.ndarray | None:
        # Copying an array from another device takes time.
        if isinstance(value, jax.Array) and (
            not value.is_fully_addressable or value.nbytes < LEAST_BYTES
        ):
            return None
        array = np.asarray(value)
        if array.nbytes < LEAST_BYTES:
            return None
        # JAX makes broadcasts of those that repeat themselves.
        if array.dtype.name not in _NAMES or 0 in array.strides:
            return None
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype or _is_one_value(array):
            return None
        return array


def _is_one_value(array: np.ndarray) -> bool:
    """Tells whether all elements have the same bits."""
    flat = array.reshape(-1)
    width = flat.dtype.itemsize
    for start in range(0, len(flat), _COMPARED_AT_ONCE):
        rows = flat[start : start + _COMPARED_AT_ONCE].view(np.uint8).reshape(-1, width)
        if (rows != flat[:1].view(np.uint8)).any():
            return False
    return True
