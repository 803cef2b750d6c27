"""Loaded models without JAX: higher gradients, and further training in TensorFlow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jax2tf_bridge import Signature, save
from tests.fresh_process import run_python
from tests.tensorflow_process import run_in_tensorflow

ORDERS = """
import json, sys
import tensorflow as tf

model = tf.saved_model.load(sys.argv[1])
x, w = tf.constant([[0.3, -0.2, 0.5], [1.0, 0.1, -0.4]]), model.params["params"]
with tf.GradientTape() as third:
    third.watch(x)
    with tf.GradientTape() as second:
        second.watch(x)
        with tf.GradientTape() as first:
            first.watch(x)
            y = model.serving_default(x)
        by_x = first.gradient(y, x)
        square = tf.reduce_sum(by_x**2)
    by_x_x = second.gradient(square, x)
    square = tf.reduce_sum(by_x_x**2)
by_x_x_w = third.gradient(square, w)
assert "jax" not in sys.modules and "jax2tf_bridge" not in sys.modules
print(json.dumps([g.numpy().tolist() for g in (by_x, by_x_x, by_x_x_w)]))
"""


@pytest.mark.slow
def test_gradients_of_three_orders_without_jax(tmp_path: Path) -> None:
    x = np.array([[0.3, -0.2, 0.5], [1.0, 0.1, -0.4]], np.float32)
    w = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)

    def f(w: Any, x: Any) -> Any:
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    signature = Signature(f, args=[x], polymorphic_shapes="(b, 3)")
    save(tmp_path / "m", signature, params=w, vjp_order=3)
    got = json.loads(run_python(ORDERS, str(tmp_path / "m"), without_jax=True))

    def one(w: Any, x: Any) -> Any:
        return jax.grad(f, 1)(w, x)

    def two(w: Any, x: Any) -> Any:
        return jax.grad(lambda x: jnp.sum(one(w, x) ** 2))(x)

    three = jax.grad(lambda w: jnp.sum(two(w, x) ** 2))(w)
    for found, expected in zip(got, (one(w, x), two(w, x), three), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


IN_A_FUNCTION = """
import json, os, sys, tempfile
import tensorflow as tf

folder, order, requests = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
model = tf.saved_model.load(folder)

@tf.function(input_signature=[tf.TensorSpec([None, 3])])
def gradients(x):
    asked = [x, model.params["params"]]

    def first():
        with tf.GradientTape() as tape:
            tape.watch(asked)
            a, b = model.serving_default(x)
            y = tf.reduce_sum(tf.sin(a)) + tf.reduce_sum(b)
        return tape.gradient(y, asked)

    if order == 1:
        return first()
    with tf.GradientTape() as tape:
        tape.watch(asked)
        found = first()
        square = tf.reduce_sum(found[0] ** 2)
    return [*found, *tape.gradient(square, asked)]

saved_stderr = os.dup(2)
with tempfile.TemporaryFile() as log:
    os.dup2(log.fileno(), 2)
    try:
        answers = [[g.numpy().tolist() for g in gradients(tf.constant(x))] for x in requests]
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
    log.seek(0)
    text = log.read().decode()
assert "jax" not in sys.modules
print(json.dumps([answers, text]))
"""


@pytest.mark.costly
@pytest.mark.parametrize(
    ("oversize", "order"),
    [
        ("split", 2),
        ("as is", 1),
        pytest.param("split", 1, marks=pytest.mark.complete),
        pytest.param("as is", 2, marks=pytest.mark.complete),
    ],
)
def test_gradients_with_buckets_in_a_function_of_tensorflow(
    oversize: Any, order: int, tmp_path: Path
) -> None:
    w = np.linspace(-1, 1, 6).astype(np.float32).reshape(3, 2)
    requests = [np.random.default_rng(n).standard_normal((n, 3), np.float32) for n in (3, 9)]

    def f(w: Any, x: Any) -> Any:
        y = jnp.tanh(x @ w)
        return y, (y**2).T

    signature = Signature(f, args=[requests[0]], polymorphic_shapes="(b, 3)")
    buckets = {"b": [4]}
    save(tmp_path / "m", signature, params=w, buckets=buckets, oversize=oversize, vjp_order=order)
    given = json.dumps([x.tolist() for x in requests])
    answers, log = json.loads(
        run_in_tensorflow(IN_A_FUNCTION, str(tmp_path / "m"), str(order), given)
    )
    assert "Type inference failed" not in log
    assert "INVALID_ARGUMENT" not in log

    def total(x: Any, w: Any) -> Any:
        a, b = f(w, x)
        return jnp.sin(a).sum() + b.sum()

    def square(x: Any, w: Any) -> Any:
        return (jax.grad(total)(x, w) ** 2).sum()

    for x, found in zip(requests, answers, strict=True):
        expected = [g for y in (total, square)[:order] for g in jax.grad(y, (0, 1))(x, w)]
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


TRAIN = """
import json, sys
import numpy as np
import tensorflow as tf

folder, data, steps = sys.argv[1], np.load(sys.argv[2]), int(sys.argv[3])
model = tf.saved_model.load(folder)
images, labels = tf.constant(data["images"]), tf.constant(data["labels"])
optimizer = tf.keras.optimizers.SGD(0.5)
losses = []
for _ in range(steps):
    with tf.GradientTape() as tape:
        logits = model.serving_default(images)
        losses.append(
            tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
        )
    gradients = tape.gradient(losses[-1], model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
assert "jax" not in sys.modules
print(json.dumps([float(loss) for loss in losses]))
"""


@pytest.mark.slow
def test_a_loaded_model_learns_in_tensorflow_as_in_jax(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, 256).astype(np.int32)
    of_labels = (rng.random((10, 64)) < 0.4).astype(np.float32)
    images = of_labels[labels] + rng.normal(0, 0.2, (256, 64)).astype(np.float32)
    params = {
        "hidden": {"kernel": rng.standard_normal((64, 32), np.float32) / 8},
        "out": {"kernel": rng.standard_normal((32, 10), np.float32) / 8},
        "steps": np.int32(0),
    }

    def f(params: Any, x: Any) -> Any:
        return jnp.tanh(x @ params["hidden"]["kernel"]) @ params["out"]["kernel"]

    signature = Signature(f, args=[images[:1]], polymorphic_shapes="(b, 64)")
    save(tmp_path / "m", signature, params=params)
    np.savez(tmp_path / "data.npz", images=images, labels=labels)
    arguments = (str(tmp_path / "m"), str(tmp_path / "data.npz"), "12")
    in_tensorflow = json.loads(run_python(TRAIN, *arguments, without_jax=True))

    def loss(weights: Any) -> Any:
        logits = f({**params, **weights}, images)
        return -jnp.mean(jax.nn.log_softmax(logits)[jnp.arange(len(labels)), labels])

    weights: Any = {key: params[key] for key in ("hidden", "out")}
    in_jax = []
    for _ in range(12):
        value, gradient = jax.value_and_grad(loss)(weights)
        in_jax.append(float(value))
        weights = jax.tree.map(lambda w, g: w - 0.5 * g, weights, gradient)
    np.testing.assert_allclose(in_tensorflow, in_jax, rtol=1e-3)
    assert in_tensorflow[-1] < 0.6 * in_tensorflow[0]
