"""convert(): requirements that are inferred, listed, checked; and AUTO with TensorFlow's values."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import AUTO, convert
from jax2tf_bridge.errors import InconclusiveShapeError, ShapeError

X = np.arange(8, dtype=np.float32)
REQUIRES = (
    r"Input shapes do not match the symbolic shape constraint b >= 5, which best requires: "
    r"x: expected shape \(b,\), got"
)


def best(x: Any) -> Any:
    return jax.lax.top_k(x, 5)[0]


def test_the_error_says_what_to_write() -> None:
    with pytest.raises(InconclusiveShapeError) as caught:
        convert(best, polymorphic_shapes="(b,)")(X)
    assert (
        "    convert(best, polymorphic_shapes='(b,)', polymorphic_constraints=[\"b >= 5\"])\n"
    ) in str(caught.value)


def test_it_reaches_the_user_out_of_a_tf_function() -> None:
    f = tf.function(convert(best, polymorphic_shapes="(b,)"))
    with pytest.raises(InconclusiveShapeError, match="best needs b >= 5"):
        f(X)


def test_infer_lists_what_it_added() -> None:
    f = convert(best, polymorphic_shapes="(b,)", polymorphic_constraints=AUTO)
    assert list(f.requirements) == []
    np.testing.assert_allclose(f(X), X[:2:-1])
    assert f.requirements == ["b >= 5"]
    assert (f.requirements[0], len(f.requirements), repr(f.requirements)) == (
        "b >= 5",
        1,
        "['b >= 5']",
    )


@pytest.mark.parametrize("mode", ["eager", "graph", "open graph", "loaded"])
def test_requirements_are_checked(mode: str, tmp_path: Path) -> None:
    f = convert(best, polymorphic_shapes="(b,)", polymorphic_constraints=AUTO)
    call: Any = f
    if mode == "graph":
        call = tf.function(f, autograph=False)
    elif mode != "eager":
        call = tf.function(f, input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False)
    if mode == "loaded":
        module = tf.Module()
        module.f = call
        tf.saved_model.save(module, str(tmp_path))
        call = tf.saved_model.load(str(tmp_path)).f
    np.testing.assert_allclose(call(tf.constant(X)), X[:2:-1])
    with pytest.raises(tf.errors.InvalidArgumentError, match=REQUIRES):
        call(tf.constant(X[:4]))


def scaled_by_best(x: Any) -> Any:
    """Its gradient alone needs five elements."""

    @jax.custom_vjp
    def double(x: Any) -> Any:
        return 2 * x

    double.defvjp(lambda x: (2 * x, None), lambda _, g: (g * jax.lax.top_k(g, 5)[0].sum(),))
    return double(x)


def gradient(f: Any, x: tf.Tensor) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = f(x)
    return tape.gradient(y, x)


@pytest.mark.parametrize("open_graph", [False, True])
def test_a_gradients_requirements_bind_gradient_calls_only(open_graph: bool) -> None:
    f: Any = convert(scaled_by_best, polymorphic_shapes="(b,)", polymorphic_constraints=AUTO)
    requirements = f.requirements
    if open_graph:
        f = tf.function(f, input_signature=[tf.TensorSpec([None], tf.float32)], autograph=False)
    short, long = tf.ones(3), tf.ones(6)
    np.testing.assert_allclose(f(short), 2 * short)
    np.testing.assert_allclose(gradient(f, long), 5 * np.ones(6))
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match="constraint b >= 5, which the gradient of scaled_by_best requires",
    ):
        gradient(f, short)
    np.testing.assert_allclose(f(short), 2 * short)
    assert requirements == []


def test_by_default_only_asking_for_that_gradient_is_an_error() -> None:
    f = convert(scaled_by_best, polymorphic_shapes="(b,)")
    np.testing.assert_allclose(f(X), 2 * X)
    with pytest.raises(InconclusiveShapeError, match="the gradient of scaled_by_best needs b >= 5"):
        gradient(f, tf.constant(X))


def test_auto_of_examples_serves_other_sizes() -> None:
    traces = []

    def f(x: Any, y: Any) -> Any:
        traces.append(str(x.shape))
        return jnp.concatenate([x, y], axis=1)

    g = convert(f, polymorphic_shapes=AUTO)
    assert g(np.ones((2, 3)), np.ones((2, 4))).shape == (2, 7)
    count = len(traces)
    assert g(np.ones((5, 6)), np.ones((5, 1))).shape == (5, 7)
    assert len(traces) == count


def test_auto_proposes_anew_where_sizes_do_not_fit() -> None:
    weights = np.ones((28, 2), np.float32)
    f = convert(lambda w, x: x @ w, polymorphic_shapes=AUTO)
    assert f(weights, np.ones((4, 28), np.float32)).shape == (4, 2)
    assert f(weights[:5], np.ones((4, 5), np.float32)).shape == (4, 2)


def test_auto_of_unknown_sizes() -> None:
    f = tf.function(
        convert(lambda x, y: (x + y, x.sum(axis=1)), polymorphic_shapes=AUTO),
        input_signature=[tf.TensorSpec([None, 3]), tf.TensorSpec([None, 3])],
        autograph=False,
    )
    for batch in (1, 4):
        total, sums = f(tf.ones((batch, 3)), tf.ones((batch, 3)))
        assert (total.shape, sums.shape) == ((batch, 3), (batch,))
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"y: expected shape \(b, 3\), got\] \[4 3\]"
    ):
        f(tf.ones((2, 3)), tf.ones((4, 3)))


def test_auto_of_an_unknown_size_that_cannot_stay_open() -> None:
    spec = [tf.TensorSpec([None], tf.float32)]
    f = tf.function(convert(best, polymorphic_shapes=AUTO), input_signature=spec)
    with pytest.raises(
        ShapeError,
        match=r"AUTO cannot leave dimension 0 of the argument x open, and its size is unknown: the "
        r"function needs d0 >= 5\. Pass polymorphic_constraints=AUTO",
    ):
        f.get_concrete_function()
    inferring = convert(best, polymorphic_shapes=AUTO, polymorphic_constraints=AUTO)
    g = tf.function(inferring, input_signature=spec, autograph=False)
    np.testing.assert_allclose(g(X), X[:2:-1])
    assert inferring.requirements == ["b >= 5"]
