"""Trains models that `save` or `save_litert` wrote, where JAX is not installed.

    python -m tests.training.consume_steps MODEL RECORD

prints the largest relative differences from what JAX recorded, as JSON. A MODEL is the folder
of a SavedModel or a .tflite file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Call = Callable[..., Mapping[str, Any]]


def load_signatures(model: str) -> dict[str, Call]:
    """Loads a model, and returns its signatures as functions of arrays by name."""
    if model.endswith(".tflite"):
        from ai_edge_litert.interpreter import Interpreter

        interpreter = Interpreter(model)
        return {name: interpreter.get_signature_runner(name) for name in _NAMES}
    import tensorflow as tf

    loaded = tf.saved_model.load(model)
    _KEPT.append(loaded)
    return {name: _call_with_arrays(loaded.signatures[name]) for name in _NAMES}


_NAMES = ("train", "predict", "get_weights")
_KEPT: list[Any] = []
"""Loaded models; a signature does not keep its model's variables alive."""


def _call_with_arrays(signature: Any) -> Call:
    import tensorflow as tf

    def call(**arrays: Any) -> dict[str, Any]:
        outputs = signature(**{name: tf.constant(a) for name, a in arrays.items()})
        return {name: value.numpy() for name, value in outputs.items()}

    return call


def compare(signatures: Mapping[str, Call], record: Mapping[str, Any]) -> dict[str, float]:
    """Trains, and returns the largest relative difference of each kind after each count."""
    x, y = record["x"], record["y"]
    counts = sorted({int(name.partition("/")[0]) for name in record if "/" in name})
    differences = {}
    for number in range(1, counts[-1] + 1):
        loss = signatures["train"](x=x, y=y)["loss"]
        if number not in counts:
            continue
        (output,) = signatures["predict"](x=x).values()
        differences[f"{number}/loss"] = measure(loss, record[f"{number}/loss"])
        differences[f"{number}/predict"] = measure(output, record[f"{number}/predict"])
        expected = [v for k, v in record.items() if k.startswith(f"{number}/weight ")]
        weights = signatures["get_weights"]()
        differences[f"{number}/weights"] = max(
            min(
                (measure(weight, each) for each in expected if each.shape == weight.shape),
                default=np.inf,
            )
            for weight in weights.values()
        )
        if len(weights) != len(expected):
            differences[f"{number}/weights"] = np.inf
    return differences


def measure(actual: Any, expected: Any) -> float:
    """Returns the largest difference, relative to the largest number."""
    expected = np.asarray(expected, np.float64)
    scale = np.max(np.abs(expected), initial=1e-30)
    return float(np.max(np.abs(np.asarray(actual, np.float64) - expected), initial=0.0) / scale)


if __name__ == "__main__":
    model, record = sys.argv[1:]
    with np.load(record) as arrays:
        print(json.dumps(compare(load_signatures(model), dict(arrays))))
