"""Requirements and the shapes of cotangents: whose they are, and which calls they bind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import PortableFunction
from jax2tf_bridge.portable import StoredGradient
from jax2tf_bridge.to_tensorflow import to_tf
from tests.to_tensorflow.shape_checking import (
    CONSTRAINT,
    assertions,
    double,
    function_of,
    in_mode,
    squares,
    words,
)


def test_cotangents_of_a_wrong_rank() -> None:
    f = to_tf(function_of(double, ["b, 3"]))
    x = tf.ones((2, 3))
    with tf.GradientTape() as tape:
        tape.watch(x)
        (y,) = f(x)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"specification of the gradient of double: the cotangent of result 0: "
        r"expected shape \(b, 3\), got \(2,\): the rank must be 2",
    ):
        tape.gradient(y, x, output_gradients=tf.ones(2))


REQUIREMENT = (
    f"{CONSTRAINT}mod(b, 2) == 0, which double requires: "
    "arrays[0]: expected shape (b,), got (3,): mod(b, 2) is 1 for b = 3"
)


@pytest.mark.parametrize("mode", ["eager", "static", "jit", "open", "loaded"])
def test_requirements_say_whose_they_are(mode: str, tmp_path: Path) -> None:
    portable = function_of(double, ["b"], requirements=["mod(b, 2) == 0"])
    f = in_mode(mode, to_tf(portable), [(3,)], tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        f(tf.ones(3))
    assert words(REQUIREMENT) in words(str(caught.value))


def with_vjp_requirement(portable: PortableFunction) -> PortableFunction:
    vjp = replace(portable.vjp(), requirements=("mod(b, 2) == 0",))
    return replace(portable, gradient=StoredGradient(vjp))


@pytest.mark.parametrize("mode", ["eager", "static", "jit", "open", "loaded"])
def test_requirements_of_the_gradient_bind_gradient_calls_only(mode: str, tmp_path: Path) -> None:
    f = in_mode(mode, to_tf(with_vjp_requirement(function_of(squares, ["b"]))), [(3,)], tmp_path)

    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = f(x)
        return tape.gradient(y, x)

    np.testing.assert_allclose(f(tf.constant([1.0, 2.0, 3.0])), [1, 4, 9])
    np.testing.assert_allclose(gradient(tf.constant([1.0, 2.0])), [2, 4])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gradient(tf.constant([1.0, 2.0, 3.0]))
    assert words(
        f"{CONSTRAINT}mod(b, 2) == 0, which the gradient of squares requires: "
        "x: expected shape (b,), got (3,): mod(b, 2) is 1 for b = 3"
    ) in words(str(caught.value))


def test_gradients_guard_what_the_call_did_not() -> None:
    f = to_tf(with_vjp_requirement(function_of(squares, ["b"])))

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])], autograph=False)
    def gradient(x: Any, cotangent: Any) -> Any:
        return tf.gradients(f(x), [x], grad_ys=[cotangent])[0]

    np.testing.assert_allclose(gradient(tf.ones(2), tf.constant([1.0, 3.0])), [2, 6])
    with pytest.raises(tf.errors.InvalidArgumentError) as caught:
        gradient(tf.ones(2), tf.ones(4))
    assert words(
        "specification of the gradient of squares: the cotangent of result 0: "
        "expected shape (b,), got (4,): b is 2"
    ) in words(str(caught.value))
    # b >= 1 for the call; for the gradient its own requirement and the cotangent.
    assert len(assertions(gradient.get_concrete_function())) == 3


def test_second_order_names_the_users_argument() -> None:
    portable = function_of(squares, ["b"])
    second = replace(portable.vjp().vjp(), requirements=("b >= 3",))
    first = replace(portable.vjp(), gradient=StoredGradient(second))
    f = to_tf(replace(portable, gradient=StoredGradient(first)))
    x = tf.ones(2)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = f(x)
        slope = inner.gradient(y, x)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"constraint b >= 3, which the gradient of the gradient of squares requires: "
        r"x: expected shape \(b,\), got \(2,\): b is 2",
    ):
        outer.gradient(slope, x)
