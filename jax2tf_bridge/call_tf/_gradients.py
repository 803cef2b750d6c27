"""Makes gradients of TensorFlow functions, as functions of flat tensors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import tensorflow as tf

from jax2tf_bridge.call_tf import _tf_compat
from jax2tf_bridge.call_tf._failures import differentiating, gradient_not_saved
from jax2tf_bridge.call_tf._functions import FlatFunction, Results, Traced
from jax2tf_bridge.call_tf._values import aval_of
from jax2tf_bridge.errors import BridgeError, GradientError
from jax2tf_bridge.portable._aval import Aval

_DRAWING = re.compile(
    r"^(Random|Multinomial|TruncatedNormal|ParameterizedTruncatedNormal|Rng|Stateful(?!Partitioned))"
)


def gradient_of(
    function: FlatFunction, places: Sequence[int], results: Sequence[int]
) -> FlatFunction:
    """Makes the VJP of a function.

    Args:
      function: of n flat arguments.
      places: of the arguments that it is differentiated by.
      results: of the results for which cotangents are given.

    Returns:
      The function of the n arguments and these cotangents; it gives one cotangent a place.
    """
    key = ("gradient", tuple(places), tuple(results))
    return function.derived(key, lambda: _Gradient(function, tuple(places), tuple(results)))


class _Gradient(FlatFunction):
    def __init__(
        self, function: FlatFunction, places: tuple[int, ...], results: tuple[int, ...]
    ) -> None:
        options = replace(function.options, declared=None)
        super().__init__(f"the gradient of {function.name}", options)
        self._function, self._places, self._results = function, places, results

    def known_shapes(
        self, avals: Sequence[Aval], shapes: Sequence[tuple[Any, ...]]
    ) -> list[tuple[Any, ...]]:
        """Returns the shapes of the arguments that it differentiates by."""
        return [shapes[i] for i in self._places]

    def run(self, tensors: Sequence[tf.Tensor]) -> Results:
        _tf_compat.check_tapes_record(self._function.name)
        count = len(tensors) - len(self._results)
        primals, cotangents = list(tensors[:count]), tensors[count:]
        with differentiating(self._function.name):
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                # Tensors of their own: the same one may be given for two arguments.
                watched = [tf.identity(primals[i]) for i in self._places]
                tape.watch(watched)
                for i, tensor in zip(self._places, watched, strict=True):
                    primals[i] = tensor
                # Of a tf.function, this looks up the gradients as well.
                found, _ = self._function.run(primals)
                targets = [tf.identity(found[i]) for i in self._results]
            gradients = tape.gradient(
                targets,
                watched,
                output_gradients=[_conjugate(cotangent) for cotangent in cotangents],
                unconnected_gradients=tf.UnconnectedGradients.ZERO,
            )
        # Gradients of tf.gather are sparse.
        dense = [
            tf.cast(_conjugate(tf.convert_to_tensor(gradient)), tensor.dtype)
            for gradient, tensor in zip(gradients, watched, strict=True)
        ]
        self._refuse_random_numbers(tensors, dense)
        return dense, jax.tree_util.tree_structure(dense)

    def _trace(self, avals: Sequence[Aval]) -> Traced:
        traced = super()._trace(avals)
        if any(map(tf.is_symbolic_tensor, traced.concrete.captured_inputs)):
            raise gradient_not_saved(self._function.name)
        return traced

    def _refuse_random_numbers(self, tensors: Sequence[tf.Tensor], results: Sequence[Any]) -> None:
        """Raises if gradients depend on numbers that were drawn anew."""
        if not tf.executing_eagerly():
            drawing = _drawing_before(results)
            if drawing is None:
                return
            raise GradientError(
                f"The TensorFlow function {self._function.name} draws random numbers ({drawing}) "
                "that its gradient depends on. The gradient runs it again, with others: it would "
                "be wrong. Draw them by tf.random.stateless_uniform and its like, with a seed that "
                "is an argument."
            )
        count = len(tensors) - len(self._results)
        avals = [aval_of(t) for t in tensors]
        try:
            operations = self._function.traced(avals[:count]).stateful_operations()
        except BridgeError:
            return  # it runs eagerly alone, where nobody can tell
        if any(map(_DRAWING.search, operations)):
            self.traced(avals)


def _drawing_before(results: Sequence[tf.Tensor]) -> str | None:
    """Finds an operation that draws numbers on which tensors of a graph depend."""
    if not results:
        return None
    drawing = list(filter(_DRAWING.search, _tf_compat.stateful_operations(results[0].graph)))
    if not drawing:
        return None
    waiting, seen = [t.op for t in results], set()
    while waiting:
        op = waiting.pop()
        if op in seen:
            continue
        seen.add(op)
        # Of calls it is not looked at what they draw.
        if _DRAWING.search(op.type) or op.type == "StatefulPartitionedCall":
            return drawing[0]
        waiting += [t.op for t in op.inputs]
    return None


def _conjugate(value: tf.Tensor) -> tf.Tensor:
    """Converts complex cotangents between JAX's convention and TensorFlow's.

    JAX multiplies a cotangent by the Jacobian, TensorFlow by its conjugate.
    """
    return tf.math.conj(value) if value.dtype.is_complex else value
