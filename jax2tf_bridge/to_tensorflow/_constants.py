"""Tensors of captured arrays: one tensor for each array, shared by all ops that take it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import FunctionError
from jax2tf_bridge.portable import LiftedConstant, PortableFunction, read_constant
from jax2tf_bridge.to_tensorflow._dtypes import op_dtype

Key: TypeAlias = Hashable


def constant_key(constant: LiftedConstant) -> Key:
    """Returns a key that is equal for constants with the same array."""
    return constant.digest, constant.aval.op_dtype, constant.aval.op_shape


class Constants(Protocol):
    """A source of the tensors of lifted constants."""

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        """Returns the tensors of the function's lifted constants, for the current graph.

        While TensorFlow saves a gradient, `saving` has the keys of the constants of the
        differentiated function; otherwise it is None. TensorFlow cannot save an eager tensor that
        only the gradient captures.
        """
        ...


class EagerConstants:
    """Eager tensors, created when first needed and shared by all graphs. Thread-safe."""

    def __init__(self) -> None:
        self._tensors: dict[Key, tf.Tensor] = {}
        self._lock = threading.Lock()

    @property
    def has_tensors(self) -> bool:
        """Returns whether any tensor was created."""
        return bool(self._tensors)

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        return [
            self._get_tensor(portable, constant, saving) for constant in portable.lifted_constants
        ]

    def _get_tensor(
        self, portable: PortableFunction, constant: LiftedConstant, saving: Collection[Key] | None
    ) -> tf.Tensor:
        key = constant_key(constant)
        if saving is not None and key not in saving:
            return tf.constant(constant_array(portable, constant))
        with tf.init_scope():
            if not tf.executing_eagerly():
                # The tensors of a TensorFlow 1 graph cannot be used in other graphs.
                return tf.constant(constant_array(portable, constant))
            with self._lock:
                if key not in self._tensors:
                    self._tensors[key] = tf.constant(constant_array(portable, constant))
                return self._tensors[key]


class CapturedArrays(tf.Module):  # type: ignore[misc]
    """Non-trainable variables of captured arrays, for a model to hold.

    Attributes:
      arrays: the variables by name, created when the functions are traced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, tf.Variable] = {}
        # Maps to names, not variables: tf.Module would track a dict of variables and reject
        # these keys.
        self._names: dict[Key, str] = {}
        self._lock = threading.RLock()

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        if portable.lifted_constants and saving is None and portable.gradient_problem() is None:
            # The gradient's variables must exist before TensorFlow saves the model.
            self._get_variables(portable.vjp())
        return [variable.read_value() for variable in self._get_variables(portable)]

    def _get_variables(self, portable: PortableFunction) -> list[tf.Variable]:
        with self._lock, tf.init_scope():
            return [
                self._get_variable(portable, constant) for constant in portable.lifted_constants
            ]

    def _get_variable(self, portable: PortableFunction, constant: LiftedConstant) -> tf.Variable:
        key = constant_key(constant)
        if key not in self._names:
            name = f"captured_{len(self.arrays)}"
            variable = tf.Variable(constant_array(portable, constant), trainable=False, name=name)
            self.arrays[name], self._names[key] = variable, name
        return self.arrays[self._names[key]]


class SharedConstants:
    """Eager tensors, or variables once `capture` was called."""

    def __init__(self, name: str) -> None:
        """Stores the function's name, for messages."""
        self._name = name
        self._eager = EagerConstants()
        self._captured: CapturedArrays | None = None
        self._lock = threading.Lock()

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        return (self._captured or self._eager).tensors(portable, saving)

    def capture(self) -> CapturedArrays:
        """Switches to variables, and returns the module that holds them.

        Raises:
          FunctionError: eager tensors exist already, in functions that were traced.
        """
        with self._lock:
            if self._captured is None:
                if self._eager.has_tensors:
                    raise FunctionError(
                        f"captured_arrays() of {self._name} was called after the function, whose "
                        "traces hold the captured arrays as constants. Call it before the first "
                        "call of the function, and store its result in your model."
                    )
                self._captured = CapturedArrays()
            return self._captured


def constant_array(portable: PortableFunction, constant: LiftedConstant) -> np.ndarray:
    """Returns a constant's array, read-only, in the dtype that the op takes.

    Raises:
      ModuleError: the portable function does not hold the array.
      DTypeError: TF lacks its dtype.
    """
    op_dtype(constant.aval, f"The constant {constant.name} of {portable.name}")
    return read_constant(portable, constant)
