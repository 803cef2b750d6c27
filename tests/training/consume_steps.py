"""Trains models that `save` or `save_litert` wrote, where JAX is not installed.

    python -m tests.training.consume_steps FOLDER MODEL...

trains each MODEL in each folder of FOLDER, a SavedModel or a .tflite file, and prints the largest
relative differences from the record.npz beside it, as JSON by folder and model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
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
        kinds = {"params": [0.0], "state": [0.0]}
        for name, weight in signatures["get_weights"]().items():
            kind = "params" if name.startswith("params") else "state"
            kinds[kind].append(measure(weight, record[f"{number}/weight {name}"]))
        differences |= {f"{number}/{kind}": max(each) for kind, each in kinds.items()}
    return differences


def measure(actual: Any, expected: Any) -> float:
    """Returns the largest difference, relative to the largest number."""
    # LiteRT holds the words of keys as signed integers.
    actual, expected = (
        np.asarray(a).astype(expected.dtype).astype(np.float64) for a in (actual, expected)
    )
    scale = np.max(np.abs(expected), initial=1e-30)
    return float(np.max(np.abs(actual - expected), initial=0.0) / scale)


if __name__ == "__main__":
    report = {}
    for folder in sorted(Path(sys.argv[1]).iterdir()):
        with np.load(folder / "record.npz") as arrays:
            record = dict(arrays)
        for model in sys.argv[2:]:
            signatures = load_signatures(str(folder / model))
            report[f"{folder.name}/{model}"] = compare(signatures, record)
    print(json.dumps(report))
