"""Converted functions inside TensorFlow's own machinery: datasets, loops, Keras, strategies."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tensorflow as tf

from jax2tf_bridge import convert
from jax2tf_bridge.errors import ModuleError
from tests.fresh_process import run_python

keras: Any = tf.keras
X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def step(x: Any) -> Any:
    return jnp.tanh(x) * 0.5


STEP = convert(step, polymorphic_shapes="(b, _)")


def test_dataset_map() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(X).batch(3).map(STEP)
    assert dataset.element_spec.shape.as_list() == [None, 3]
    np.testing.assert_allclose(np.concatenate(list(dataset.as_numpy_iterator())), step(X))


def test_dataset_map_in_parallel() -> None:
    dataset = tf.data.Dataset.from_tensor_slices(X).map(convert(step), num_parallel_calls=2)
    np.testing.assert_allclose(list(dataset.as_numpy_iterator()), step(X))


@pytest.mark.parametrize("jit_compile", [None, True])
def test_state_of_a_while_loop_keeps_its_static_shape(jit_compile: bool | None) -> None:
    @tf.function(jit_compile=jit_compile, autograph=False)
    def loop(x: Any) -> Any:
        return tf.while_loop(lambda i, _: i < 3, lambda i, v: (i + 1, STEP(v)), (0, x))[1]

    np.testing.assert_allclose(loop(tf.constant(X)), step(step(step(X))), rtol=1e-6)


def test_while_loop_in_eager_mode_and_by_autograph() -> None:
    _, eager = tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, STEP(v)), (0, X))
    np.testing.assert_allclose(eager, step(step(X)), rtol=1e-6)

    @tf.function
    def loop(x: Any, n: Any) -> Any:
        for _ in tf.range(n):
            x = STEP(x)
        return x

    np.testing.assert_allclose(loop(X, tf.constant(2)), step(step(X)), rtol=1e-6)


def test_gradient_through_a_while_loop() -> None:
    @tf.function(autograph=False)
    def gradient(x: Any) -> Any:
        _, y = tf.while_loop(
            lambda i, _: i < 3, lambda i, v: (i + 1, STEP(v)), (0, x), maximum_iterations=3
        )
        return tf.gradients(y, [x])[0]

    expected = jax.grad(lambda x: jnp.sum(step(step(step(x)))))(X)
    np.testing.assert_allclose(gradient(tf.constant(X)), expected, rtol=1e-5)


@pytest.mark.parametrize("in_graph", [False, True])
def test_cond(in_graph: bool) -> None:
    def choose(p: Any, x: Any) -> Any:
        return tf.cond(p, lambda: STEP(x), lambda: x)

    call = tf.function(choose, autograph=False) if in_graph else choose
    np.testing.assert_allclose(call(tf.constant(True), X), step(X))
    np.testing.assert_allclose(call(tf.constant(False), X), X)


def test_gradient_through_cond() -> None:
    @tf.function(autograph=False)
    def gradient(p: Any, x: Any) -> Any:
        return tf.gradients(tf.cond(p, lambda: STEP(x), lambda: x), [x])[0]

    expected = jax.grad(lambda x: jnp.sum(step(x)))(X)
    np.testing.assert_allclose(gradient(tf.constant(True), tf.constant(X)), expected, rtol=1e-5)


def test_map_fn() -> None:
    f = convert(step)
    np.testing.assert_allclose(tf.map_fn(f, tf.constant(X)), step(X), rtol=1e-6)
    in_graph = tf.function(lambda x: tf.map_fn(f, x), autograph=False)
    np.testing.assert_allclose(in_graph(tf.constant(X)), step(X), rtol=1e-6)


def test_vectorized_map_works_by_its_fallback() -> None:
    f = convert(step)
    mapped = tf.vectorized_map(f, tf.constant(X), fallback_to_while_loop=True)
    np.testing.assert_allclose(mapped, step(X), rtol=1e-6)


def predict(params: Any, x: Any) -> Any:
    return x @ params["kernel"] + params["bias"]


class JaxDense(keras.layers.Layer):  # type: ignore[misc]
    """A layer whose weights are Keras's, and whose arithmetic is JAX's."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.units = units
        self.f = convert(predict, polymorphic_shapes=[None, "(b, _)"])

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        return self.f({"kernel": self.kernel, "bias": self.bias}, x)

    def compute_output_shape(self, shape: Any) -> Any:
        return (*shape[:-1], self.units)


@pytest.fixture
def same_numbers() -> Iterator[None]:
    """Draws the same random numbers each time; TensorFlow in this test alone."""
    keras.utils.set_random_seed(0)
    yield
    tf.random.set_seed(None)


@pytest.mark.costly
@pytest.mark.usefixtures("same_numbers")
@pytest.mark.parametrize("jit_compile", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_keras_fit(jit_compile: bool) -> None:
    model = keras.Sequential([keras.Input((3,)), JaxDense(4), keras.layers.ReLU(), JaxDense(1)])
    assert len(model.trainable_variables) == 4
    model.compile(keras.optimizers.Adam(0.1), "mse", jit_compile=jit_compile)
    target = X.sum(1, keepdims=True)
    history = model.fit(X, target, epochs=25, batch_size=3, verbose=0)
    assert history.history["loss"][-1] < history.history["loss"][0] / 10
    np.testing.assert_allclose(model.predict(X, verbose=0), model(X), rtol=1e-5)


def test_keras_functional_model_by_a_lambda_layer() -> None:
    inputs = keras.Input((3,))
    outputs = keras.layers.Lambda(STEP, output_shape=(3,))(inputs)
    model = keras.Model(inputs, outputs)
    np.testing.assert_allclose(model(X), step(X), rtol=1e-6)


@pytest.mark.slow
def test_mirrored_strategy_on_two_devices() -> None:
    out = run_python(
        """
        import jax.numpy as jnp, numpy as np, tensorflow as tf
        from jax2tf_bridge import convert
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        f = convert(lambda w, x: jnp.sum((x @ w) ** 2), polymorphic_shapes=[None, "(b, _)"])
        with strategy.scope():
            w = tf.Variable(np.ones((3, 1), np.float32))

        @tf.function
        def step(x):
            def replica(x):
                with tf.GradientTape() as tape:
                    loss = f(w, x)
                w.assign_sub(0.001 * tf.distribute.get_replica_context().all_reduce(
                    "sum", tape.gradient(loss, w)))
                return loss
            return strategy.reduce("sum", strategy.run(replica, (x,)), axis=None)

        data = np.arange(12, dtype=np.float32).reshape(4, 3)
        batches = strategy.experimental_distribute_dataset(
            tf.data.Dataset.from_tensor_slices(data).batch(4))
        losses = [float(step(x)) for x in batches]
        one = np.ones((3, 1), np.float32)
        assert np.allclose(losses, [np.sum((data @ one) ** 2)]), losses
        assert np.allclose(w.numpy(), one - 0.001 * 2 * data.T @ (data @ one)), w.numpy()
        print(strategy.num_replicas_in_sync)
        """
    )
    assert out.splitlines()[-1] == "2"


@pytest.mark.parametrize("dtype", [jnp.float8_e4m3fn, jnp.float8_e5m2])
def test_8_bit_floats_in_branches_and_loops_without_xla(dtype: Any) -> None:
    """TensorFlow has no kernels that pass them into branches and loops."""

    def narrow(x: Any) -> Any:
        return x.astype(dtype)

    def f(x: Any) -> Any:
        around, constant = narrow(x), narrow(jnp.float32(0.5))
        halves = jax.lax.fori_loop(0, 3, lambda i, y: y * around[i] + constant, around)
        total, steps = jax.lax.scan(lambda y, e: (y + e, y), constant, around)
        branch = jax.lax.cond(x[0] > 0, lambda: around * halves, lambda: around + constant)
        highest = jax.ops.segment_max(around, jnp.array([0, 1, 0]), 2)
        results = (halves, total, steps, branch, highest)
        return jnp.concatenate([y.reshape(-1).astype(jnp.float32) for y in results])

    converted = convert(f, enable_xla=False)
    for x in (np.array([0.5, 1.7, -3.2], np.float32), np.array([-1.0, 0.1, 2.0], np.float32)):
        np.testing.assert_array_equal(converted(x), jax.jit(f)(x))


def test_8_bit_floats_that_tensorflow_only_has_a_name_for() -> None:
    convert_inside = convert(
        lambda x: x.astype(jnp.float8_e5m2fnuz).astype(jnp.float32), enable_xla=False
    )
    with pytest.raises(ModuleError, match="TensorFlow has no operations for tensor<3xf8E5M2FNUZ>"):
        convert_inside(np.ones(3, np.float32))
