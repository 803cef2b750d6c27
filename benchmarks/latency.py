"""Steady-state time of a call: the bridge, jax2tf, and the same model written in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import tensorflow as tf

from benchmarks import _measure
from benchmarks._models import MODELS, Model, write_tensorflow_model
from jax2tf_bridge import Target, convert

_BASELINES = ("jax2tf", "TF graph")


def _make_served(f: Callable[..., Any], model: Model, *, jit_compile: bool | None = None) -> Any:
    """Makes a function to serve: its weights are variables, and its batch size is open."""
    weights = {name: tf.Variable(value) for name, value in model.weights.items()}
    inputs = tf.TensorSpec((None, *model.shape), tf.float32)
    return tf.function(
        lambda x: f(weights, x), input_signature=[inputs], jit_compile=jit_compile, autograph=False
    )


def _convert_with_jax2tf(model: Model) -> Any:
    from jax.experimental import jax2tf

    return jax2tf.convert(model.apply, polymorphic_shapes=[None, model.polymorphic_shape])


def _convert_with_bridge(model: Model, target: Target) -> Any:
    return convert(model.apply, polymorphic_shapes=[None, model.polymorphic_shape], target=target)


def contestants(name: str, model: Model) -> dict[str, Any]:
    """Returns the functions to compare, by name; each takes the inputs."""
    return {
        "bridge, widest": _make_served(_convert_with_bridge(model, Target.widest()), model),
        "bridge, installed": _make_served(_convert_with_bridge(model, Target.installed()), model),
        "jax2tf": _make_served(_convert_with_jax2tf(model), model),
        "TF graph": _make_served(write_tensorflow_model(name), model),
        "TF graph, XLA": _make_served(write_tensorflow_model(name), model, jit_compile=True),
        "jax.jit": jax.jit(lambda x: model.apply(model.weights, x)),
    }


def _make_call(f: Callable[..., Any], x: Any) -> Callable[[], Any]:
    return lambda: np.asarray(f(x))


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=31)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 256])
    options = parser.parse_args()
    rows, measured, notes = [], [], []
    for name in ("MLP", "conv net"):
        model = MODELS[name]()
        entrants = contestants(name, model)
        for batch in options.batches:
            _measure.print_progress(f"{name}, batch {batch}")
            array = model.inputs(batch)
            expected = np.asarray(entrants["jax.jit"](array))
            calls: dict[str, Callable[[], Any]] = {}
            for who, f in entrants.items():
                x = jax.device_put(array) if who == "jax.jit" else tf.constant(array)
                try:
                    np.testing.assert_allclose(np.asarray(f(x)), expected, rtol=1e-3, atol=1e-3)
                except (tf.errors.OpError, NotImplementedError, ValueError) as e:
                    note = f"{who} does not run the {name}: {str(e).strip().splitlines()[0][:200]}"
                    if note not in notes:
                        notes.append(note)
                    continue
                calls[who] = _make_call(f, x)
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
            for who in calls:
                time = _measure.Spread.of(times[who])
                row: dict[str, Any] = {"model": name, "batch": batch, "who": who, "seconds": time}
                texts = []
                for baseline in _BASELINES:
                    if baseline not in calls:
                        texts.append("-")
                        continue
                    row[f"to {baseline}"] = _measure.compute_ratios(times, who, baseline)
                    texts.append(row[f"to {baseline}"].ratio_text())
                measured.append(row)
                rows.append([name, str(batch), who, _measure.seconds_text(time.median), *texts])
    _measure.report(
        "Steady-state latency",
        ["model", "batch", "run by", "median", *(f"x {b}" for b in _BASELINES)],
        rows,
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
