"""Tensors of the arrays that functions captured: one each, however many ops take it."""

from __future__ import annotations

import threading
from collections.abc import Collection, Hashable
from typing import Protocol, TypeAlias

import numpy as np
import tensorflow as tf

from jax2tf_bridge.errors import FunctionError, ModuleError
from jax2tf_bridge.portable._aval import LiftedConstant
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.to_tf._dtypes import op_dtype

Key: TypeAlias = Hashable


def constant_key(constant: LiftedConstant) -> Key:
    """Equal for constants that are one array."""
    return constant.digest, constant.aval.op_dtype, constant.aval.op_shape


class Constants(Protocol):
    """A source of the tensors of lifted constants."""

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        """One for each lifted constant of the function, in its order, in the current graph.

        `saving` is given while TensorFlow saves a gradient: the keys of the constants that the
        function has whose gradient it is. TensorFlow cannot save eager tensors that a gradient
        alone captures.
        """
        ...


class EagerConstants:
    """Eager tensors, made at the first need and shared by all graphs; safe to use in threads."""

    def __init__(self) -> None:
        self._known: dict[Key, tf.Tensor] = {}
        self._lock = threading.Lock()

    @property
    def made(self) -> bool:
        """Tells whether there are any by now."""
        return bool(self._known)

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        return [self._one(portable, constant, saving) for constant in portable.lifted_constants]

    def _one(
        self, portable: PortableFunction, constant: LiftedConstant, saving: Collection[Key] | None
    ) -> tf.Tensor:
        key = constant_key(constant)
        if saving is not None and key not in saving:
            return tf.constant(constant_array(portable, constant))
        with tf.init_scope():
            if not tf.executing_eagerly():
                # A graph of TensorFlow 1, whose tensors are of no use elsewhere.
                return tf.constant(constant_array(portable, constant))
            with self._lock:
                if key not in self._known:
                    self._known[key] = tf.constant(constant_array(portable, constant))
                return self._known[key]


class CapturedArrays(tf.Module):  # type: ignore[misc]
    """Variables for the arrays that functions captured, not trainable, for a model to hold.

    Attributes:
      arrays: the variables by name, made when the functions are traced.
    """

    def __init__(self) -> None:
        super().__init__()
        self.arrays: dict[str, tf.Variable] = {}
        # Of names: TensorFlow would track variables in it, and not take its keys.
        self._names: dict[Key, str] = {}
        self._lock = threading.RLock()

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        if portable.lifted_constants and saving is None and portable.gradient_problem() is None:
            # What the gradient captures has to be there before TensorFlow saves the model.
            self._variables(portable.vjp())
        return [variable.read_value() for variable in self._variables(portable)]

    def _variables(self, portable: PortableFunction) -> list[tf.Variable]:
        with self._lock, tf.init_scope():
            return [self._variable(portable, constant) for constant in portable.lifted_constants]

    def _variable(self, portable: PortableFunction, constant: LiftedConstant) -> tf.Variable:
        key = constant_key(constant)
        if key not in self._names:
            name = f"captured_{len(self.arrays)}"
            variable = tf.Variable(constant_array(portable, constant), trainable=False, name=name)
            self.arrays[name], self._names[key] = variable, name
        return self.arrays[self._names[key]]


class SharedConstants:
    """Eager tensors, or variables from the moment that someone wants to hold them."""

    def __init__(self, name: str) -> None:
        """Takes the function's name, for messages."""
        self._name = name
        self._eager = EagerConstants()
        self._captured: CapturedArrays | None = None
        self._lock = threading.Lock()

    def tensors(
        self, portable: PortableFunction, saving: Collection[Key] | None
    ) -> list[tf.Tensor]:
        return (self._captured or self._eager).tensors(portable, saving)

    def captured(self) -> CapturedArrays:
        """Makes variables of the arrays from now on, and returns what holds them.

        Raises:
          FunctionError: there are eager tensors already, in what was traced.
        """
        with self._lock:
            if self._captured is None:
                if self._eager.made:
                    raise FunctionError(
                        f"captured_arrays() of {self._name} was called after the function: what "
                        "was traced has its captured arrays as constants. Call it, and hold what "
                        "it gives in your model, before the first call."
                    )
                self._captured = CapturedArrays()
            return self._captured


def constant_array(portable: PortableFunction, constant: LiftedConstant) -> np.ndarray:
    """Returns a constant's array, read-only, in its dtype for the op.

    Raises:
      ModuleError: the portable function does not hold it.
      DTypeError: TF lacks its dtype.
    """
    dtype = op_dtype(constant.aval, f"The constant {constant.name} of {portable.name}")
    if constant.data is None:
        raise ModuleError(
            f"{portable.name} captured the array {constant.name or constant.digest} "
            f"({constant.aval}), which its portable function does not hold: it was written "
            "without arrays. Write the file with arrays=True, or pass the weights as an argument."
        )
    stored = tf.as_dtype(constant.aval.module_dtype).as_numpy_dtype
    array = np.frombuffer(constant.data, dtype=stored).astype(dtype.as_numpy_dtype, copy=False)
    # Nothing of it is open.
    return array.reshape([size for size in constant.aval.op_shape if isinstance(size, int)])
