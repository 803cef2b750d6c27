"""Checks in a graph that its results have the sizes that JAX takes them for."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge.errors import ShapeError
from jax2tf_bridge.portable._aval import Aval
from jax2tf_bridge.to_tf._shape_guards import SizeAlgebra
from shape_poly import Dim, make_plan, solve

_NOT_IN_NAMES = re.compile(r"\W+", re.ASCII)


class SizeChecks:
    """Checks of results, for arguments of symbolic shapes.

    XLA knows all sizes when it compiles, and drops assertions. A reshape of nothing but zeros to
    the size that is expected leaves nothing in the program, and fails to compile where the sizes
    differ; TensorFlow's message has its name.
    """

    def __init__(self, name: str, arguments: Sequence[tf.Tensor], avals: Sequence[Aval]) -> None:
        """Of the function `name`, in the current graph."""
        self._name, self._arguments = name, arguments
        self._shapes = [aval.shape for aval in avals]

    def checked(self, result: tf.Tensor, i: int, aval: Aval) -> tf.Tensor:
        """The i-th result, which fails to compile unless it has the shape of `aval`.

        Raises:
          ShapeError: a size of it does not follow from those of the arguments.
        """
        known = result.shape
        rank = len(aval.shape)
        if known.rank is None:
            with tf.control_dependencies([self._check(tf.rank(result), rank, i, "rank")]):
                result = tf.ensure_shape(result, [None] * rank)
            known = result.shape
        checks = [
            self._check(tf.shape(result)[axis], self._expected(size, i), i, f"size_{axis}")
            for axis, size in enumerate(aval.shape)
            if known[axis] is None
        ]
        with tf.control_dependencies(checks):
            return tf.identity(result)

    def _check(self, found: Any, expected: Any, i: int, what: str) -> tf.Operation:
        name = _NOT_IN_NAMES.sub("_", self._name).strip("_")
        label = f"{what}_of_result_{i}_of_{name}_is_not_as_declared"
        return tf.reshape(tf.zeros([found], tf.bool), [expected], name=label).op

    def _expected(self, size: Dim, i: int) -> Any:
        if isinstance(size, int):
            return size
        for argument, shape in zip(self._arguments, self._shapes, strict=True):
            if size in shape:
                return tf.shape(argument)[shape.index(size)]
        missing = size.variables() - self._values.keys()
        if missing:
            raise ShapeError(
                f"The result {i} of the TensorFlow function {self._name} is to have the size "
                f"{size}, which does not follow from the sizes of its arguments: none determines "
                f"{', '.join(sorted(missing))}. Declare another size in output_shape_dtype."
            )
        return size.evaluate_with(self._values, SizeAlgebra(tf.int32))

    @functools.cached_property
    def _values(self) -> Mapping[str, Any]:
        sizes = [
            [d if isinstance(d, int) else tf.shape(argument)[axis] for axis, d in enumerate(shape)]
            for argument, shape in zip(self._arguments, self._shapes, strict=True)
        ]
        plan = make_plan(self._shapes, sizes)
        return solve(plan, sizes, SizeAlgebra(tf.int32)).values
