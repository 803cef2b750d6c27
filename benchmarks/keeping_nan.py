"""Cost of keeping NaN in maxima: time of a call, compared with the modules that JAX writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf
from jax import lax

from benchmarks import _measure
from benchmarks._models import MODELS, Model
from jax2tf_bridge import export, from_exported, to_tf

_BASELINE = "JAX's module"


def pools() -> Model:
    """Makes the conv net with 2x2 max pools instead of strides."""
    model = MODELS["conv net"]()
    weights = {**model.weights, "d": model.weights["d"][: 3 * 3 * 64]}

    def apply(w: Any, x: jax.Array) -> jax.Array:
        for i in range(3):
            numbers = ("NHWC", "HWIO", "NHWC")
            x = lax.conv_general_dilated(x, w[f"c{i}"], (1, 1), "SAME", dimension_numbers=numbers)
            window = (1, 2, 2, 1)
            x = lax.reduce_window(jax.nn.relu(x), -np.inf, lax.max, window, window, "VALID")
        return jnp.matmul(x.reshape(x.shape[0], -1), w["d"])

    return Model(apply, weights, model.shape, model.polymorphic_shape)


def _make_call(function: Callable[..., Any], model: Model, x: Any) -> Callable[[], Any]:
    weights = {name: tf.Variable(value) for name, value in model.weights.items()}
    served = tf.function(lambda x: function(weights, x), autograph=False)
    tensor = tf.constant(x)
    return lambda: np.asarray(served(tensor))


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=51)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16])
    options = parser.parse_args()
    rows, measured = [], []
    for name, make in {**MODELS, "conv net with pools": pools}.items():
        model = make()
        for batch in options.batches:
            _measure.print_progress(f"{name}, batch {batch}")
            x = model.inputs(batch)
            plain = jax.export.export(jax.jit(model.apply), platforms=["cpu"])(model.weights, x)
            calls = {
                "bridge": _make_call(
                    to_tf(export(model.apply, platforms=["cpu"])(model.weights, x)), model, x
                ),
                _BASELINE: _make_call(to_tf(from_exported(plain)), model, x),
            }
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
            took = _measure.Spread.of(times["bridge"])
            ratio = _measure.compute_ratios(times, "bridge", _BASELINE)
            measured.append({"model": name, "batch": batch, "seconds": took, "ratio": ratio})
            text = _measure.seconds_text(took.median)
            rows.append([name, str(batch), text, ratio.ratio_text()])
    _measure.report(
        "Maxima that keep NaN",
        ["model", "batch", "median", f"x {_BASELINE}"],
        rows,
        measured,
        json_path=options.json,
        notes=["XLA drops NaN from the maxima of JAX's module, in TensorFlow on the CPU."],
    )


if __name__ == "__main__":
    main()
