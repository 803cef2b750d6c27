"""Time of a train step in a SavedModel: compared with JAX and with Keras."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")  # before Keras is imported

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import tensorflow as tf
from jax import lax

from benchmarks import _measure
from jax2tf_bridge import Signature, Target, save

_BASELINES = ("jax.jit", "Keras")
_OPTIMIZER = optax.sgd(0.01, momentum=0.9)


def make_state() -> dict[str, Any]:
    """Draws the weights of a conv net for images of 28 x 28, and the optimizer's state."""
    random = np.random.default_rng(0)
    shapes = {
        "first": (3, 3, 1, 32),
        "second": (3, 3, 32, 64),
        "scores": (7 * 7 * 64, 10),
    }
    params = {n: random.normal(0, 0.05, s).astype(np.float32) for n, s in shapes.items()}
    return {"params": params, "optimizer": _OPTIMIZER.init(params)}


def compute_loss(params: Any, images: Any, labels: Any) -> Any:
    """Computes the mean cross entropy."""
    x = images
    for name in ("first", "second"):
        numbers = ("NHWC", "HWIO", "NHWC")
        x = lax.conv_general_dilated(x, params[name], (2, 2), "SAME", dimension_numbers=numbers)
        x = jax.nn.relu(x)
    scores = jnp.matmul(x.reshape(x.shape[0], -1), params["scores"])
    return optax.softmax_cross_entropy_with_integer_labels(scores, labels).mean()


def train(state: Any, images: Any, labels: Any) -> Any:
    """Makes a step of SGD with momentum."""
    loss, gradients = jax.value_and_grad(compute_loss)(state["params"], images, labels)
    updates, optimizer = _OPTIMIZER.update(gradients, state["optimizer"])
    params = optax.apply_updates(state["params"], updates)
    return {"loss": loss}, {"params": params, "optimizer": optimizer}


def call_saved(folder: Path, target: Target | None, images: Any, labels: Any) -> Callable[[], Any]:
    """Saves the step, and returns a call of the loaded signature."""
    signature = Signature(
        train,
        args=[images, labels],
        polymorphic_shapes=["(b, 28, 28, 1)", "(b,)"],
        updates_params=True,
    )
    save(folder, signature, params=make_state(), target=target)
    model = tf.saved_model.load(str(folder))
    tensors = {"images": tf.constant(images), "labels": tf.constant(labels)}
    step = model.signatures["serving_default"]

    def call() -> Any:
        # The model is named, because a signature does not keep its variables alive.
        return model and step(**tensors)["loss"].numpy()

    return call


def call_jax(images: Any, labels: Any) -> Callable[[], Any]:
    """Returns a call of the jitted step, which reuses the memory of the state."""
    step, state = jax.jit(train, donate_argnums=0), [jax.device_put(make_state())]

    def call() -> Any:
        outputs, state[0] = step(state[0], images, labels)
        return np.asarray(outputs["loss"])

    return call


def call_keras(images: Any, labels: Any) -> Callable[[], Any]:
    """Returns a call of train_on_batch of the same net."""
    options = {"strides": 2, "padding": "same", "activation": "relu", "use_bias": False}
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Conv2D(32, 3, **options),
            keras.layers.Conv2D(64, 3, **options),
            keras.layers.Flatten(),
            keras.layers.Dense(10, use_bias=False),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), loss)
    return lambda: model.train_on_batch(images, labels)


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=31)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32])
    options = parser.parse_args()
    random = np.random.default_rng(1)
    rows, measured = [], []
    for batch in options.batches:
        _measure.print_progress(f"batch {batch}")
        images = random.normal(size=(batch, 28, 28, 1)).astype(np.float32)
        labels = random.integers(0, 10, batch).astype(np.int32)
        with tempfile.TemporaryDirectory() as folder:
            calls = {
                "XLA": call_saved(Path(folder, "xla"), None, images, labels),
                "operations": call_saved(
                    Path(folder, "operations"), Target.widest(xla=False), images, labels
                ),
                "jax.jit": call_jax(images, labels),
                "Keras": call_keras(images, labels),
            }
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
        for way in ("XLA", "operations"):
            took = _measure.Spread.of(times[way])
            ratios = [_measure.compute_ratios(times, way, baseline) for baseline in _BASELINES]
            measured.append(
                {
                    "way": way,
                    "batch": batch,
                    "seconds": took,
                    **{f"ratio_{b}": r for b, r in zip(_BASELINES, ratios, strict=True)},
                }
            )
            text = _measure.seconds_text(took.median)
            rows.append([way, str(batch), text, *(ratio.ratio_text() for ratio in ratios)])
    _measure.report(
        "Train steps of a conv net",
        ["way", "batch", "median", *(f"x {baseline}" for baseline in _BASELINES)],
        rows,
        measured,
        json_path=options.json,
        notes=["Keras is train_on_batch on TensorFlow. JAX reuses the memory of the state."],
    )


if __name__ == "__main__":
    main()
