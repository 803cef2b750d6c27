"""The arrays of lifted constants."""

from __future__ import annotations

import numpy as np

from jax2tf_bridge._dtypes import find_dtype
from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.portable._aval import LiftedConstant
from jax2tf_bridge.portable._portable_function import PortableFunction


def read_constant(portable: PortableFunction, constant: LiftedConstant) -> np.ndarray:
    """Returns a constant's array, read-only, in the dtype in which it is passed.

    Raises:
      ModuleError: the portable function does not hold the array.
    """
    if constant.data is None:
        raise ModuleError(
            f"{portable.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which its portable function does not hold: it was written "
            "without arrays. Write the file with arrays=True, or pass the weights as an argument."
        )
    stored, passed = (
        find_dtype(name) for name in (constant.aval.module_dtype, constant.aval.op_dtype)
    )
    assert stored is not None, "a constant has a dtype of the table"
    assert passed is not None, "a constant has a dtype of the table"
    array = np.frombuffer(constant.data, stored.numpy()).astype(passed.numpy(), copy=False)
    return array.reshape(constant.aval.known_op_shape)
