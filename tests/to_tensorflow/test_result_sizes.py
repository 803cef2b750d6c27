"""Sizes of results that do not fit into 32 bits are errors: the module would compute others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from jax2tf_bridge import PortableFunction, convert, export, to_tf
from jax2tf_bridge.errors import ShapeError

# Private: sizes beyond 2**31, without arrays of them.
from jax2tf_bridge.to_tensorflow._shape_guards import CheckedArithmetic
from shape_poly import DimExpr, parse_dimension
from tests.sampling import examples

ROW = np.ones(3, np.int8)


def power(x: Any) -> Any:
    return jnp.broadcast_to(x[0], (x.shape[0] ** 11,))


def outer(x: Any, y: Any) -> Any:
    return jnp.reshape(x[:, None] * y, -1)


def function_of(f: Any, *names: str) -> PortableFunction:
    return export(f, polymorphic_shapes=list(names), platforms=["cpu"])(*[ROW] * len(names))


def unknown(f: Any, count: int) -> Any:
    return tf.function(f, input_signature=[tf.TensorSpec([None], tf.int8)] * count)


POWER = (
    r"power computes sizes in 32 bits, like every function that JAX exports, and b\^11 does not "
    r"fit\."
)


@pytest.mark.parametrize("wrapped", [lambda f: f, tf.function], ids=["eager", "graph"])
def test_a_size_that_is_known(wrapped: Any) -> None:
    eight = np.ones(8, np.int8)
    message = f"{POWER} Result 0 would have this size, 8589934592 here. Call it with smaller sizes"
    for f in (to_tf(function_of(power, "b")), convert(power, polymorphic_shapes="b")):
        with pytest.raises(ShapeError, match=message):
            wrapped(f)(eight)
        assert wrapped(f)(np.ones(2, np.int8)).shape == (2048,)


def test_a_size_with_more_digits_than_python_writes() -> None:
    portable = function_of(lambda x: jnp.broadcast_to(x[0], (x.shape[0] ** 60,) * 2), "b")
    with pytest.raises(ShapeError, match=r"b\^60 does not fit.* more than 10\^30 here"):
        to_tf(portable)(np.ones(8, np.int8))


def test_a_size_that_is_known_at_run_time_only() -> None:
    f = unknown(to_tf(function_of(power, "b")), 1)
    assert f(np.ones(2, np.int8)).shape == (2048,)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=rf"{POWER} Call it with smaller sizes than b =\] \[8"
    ):
        f(np.ones(8, np.int8))


def test_a_product_of_two_sizes() -> None:
    f = unknown(to_tf(function_of(outer, "b", "c")), 2)
    assert f(np.ones(300, np.int8), np.ones(400, np.int8)).shape == (120_000,)
    large = np.ones(70_000, np.int8)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"than b =\] \[70000\] \[, c =\]"):
        f(large, large)


def guards(f: Any, count: int) -> int:
    operations = unknown(f, count).get_concrete_function().graph.get_operations()
    return sum(op.type == "Assert" for op in operations)


def test_sizes_that_cannot_wrap_around_cost_nothing() -> None:
    plain = guards(to_tf(function_of(lambda x: x, "b")), 1)
    assert (
        guards(to_tf(function_of(lambda x: jnp.concatenate([x, x, ROW[:1]])[1:], "b")), 1) == plain
    )
    assert guards(to_tf(function_of(power, "b")), 1) == plain + 1


def test_sizes_that_an_argument_has_cost_nothing() -> None:
    flat = to_tf(function_of(lambda x, y, z: x * 2, "b*c", "b", "c"))
    assert guards(flat, 3) == guards(to_tf(function_of(lambda x, y, z: y * 2, "b*c", "b", "c")), 3)


EXPRESSIONS = [
    "b^2 + b*c + 5",
    "b*c - 7*b",
    "-1*floordiv(-1*b, 2)*c + mod(b, 3)",
    "3000000000*b",
    "max(b, 4)*min(c, 100) - b - c",
    "floordiv(b*c, 2) + 2147483647",
]
sizes = st.integers(1, 100) | st.integers(40_000, 2**31 - 1)


@pytest.mark.parametrize("text", EXPRESSIONS)
@settings(max_examples=examples(30), deadline=None)
@given(sizes, sizes)
def test_arithmetic_knows_whether_it_wrapped_around(text: str, b: int, c: int) -> None:
    dimension = parse_dimension(text)
    assert isinstance(dimension, DimExpr)
    exact = Exact()
    dimension.evaluate_with({"b": b, "c": c}, exact)
    for known in ((), ("b",), ("c",)):
        checked = CheckedArithmetic()
        values: Mapping[str, Any] = {
            name: size if name in known else tf.constant(size)
            for name, size in (("b", b), ("c", c))
        }
        result = dimension.evaluate_with(values, checked)
        if int(checked.room) >= 0:
            assert int(result) == dimension.evaluate({"b": b, "c": c})
        elif not known:
            assert exact.largest > 2**31 - 1


class Exact:
    """Algebra of ints that records the largest absolute value of its sums and products."""

    def __init__(self) -> None:
        self.largest = 0

    def _seen(self, value: int) -> int:
        self.largest = max(self.largest, abs(value))
        return value

    def constant(self, value: int) -> int:
        return self._seen(value)

    def add(self, left: int, right: int) -> int:
        return self._seen(left + right)

    def multiply(self, left: int, right: int) -> int:
        return self._seen(left * right)

    def floordiv(self, left: int, right: int) -> int:
        return left // right

    def mod(self, left: int, right: int) -> int:
        return left % right

    def maximum(self, left: int, right: int) -> int:
        return max(left, right)

    def minimum(self, left: int, right: int) -> int:
        return min(left, right)
