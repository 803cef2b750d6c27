"""Makes Keras layers of what `expected` wrote: values, gradients, training, archives.

python -m tests.models.layers EXPORTED REPORT [MODEL ...]
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf

from jax2tf_bridge import KerasLayer
from tests.consumers.exchange import OPERATIONS, Report, read_arrays
from tests.consumers.one_by_one import one_by_one
from tests.models.comparing import compare, largest
from tests.models.served import SMALLEST, filled


def layer_differences(folder: Path) -> list[str]:
    """Lists what differs from JAX's answers, of the layer that XLA runs and of the other one."""
    own = f"{OPERATIONS}model"
    return [
        *_differences(folder, "model"),
        *(f"{own}: {text}" for text in _differences(folder, own)),
    ]


def _differences(folder: Path, name: str) -> Iterator[str]:
    facts = json.loads((folder / "model.json").read_text())
    layer = KerasLayer(folder / name, name="layer")
    weights = [layer.params[weight].value for weight in facts["weights"]]
    calls = [read_arrays(folder / f"call-{i}.npz") for i in range(facts["calls"])]
    for i, arrays in enumerate(calls):
        inputs = [tf.constant(array) for array in arrays["inputs"]]
        sources = [*(inputs[j] for j in facts["sources"]), *weights]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            _draw_next(layer, inputs)
            results = tf.nest.flatten(layer(_nested(facts, inputs)))
        targets = [r for r in results if r.dtype.is_floating]
        cotangents = [tf.constant(c) for c in arrays["cotangents"]]
        gradients = tape.gradient(targets, sources, cotangents, tf.UnconnectedGradients.ZERO)
        tolerance, outputs = facts["tolerance"], facts["outputs"]
        answers = arrays["results"]
        yield from compare(f"call {i}, ", outputs, results, answers, tolerance, noted=name)
        names = [*(facts["inputs"][j] for j in facts["sources"]), *facts["weights"]]
        expected, tolerance = arrays["gradients"], facts["gradient_tolerance"]
        floor = SMALLEST * max(map(largest, expected))
        where = f"call {i}, gradient of "
        yield from compare(where, names, gradients, expected, tolerance, floor=floor)
    yield from _archived(folder, facts, layer, calls[0])


def _archived(folder: Path, facts: Any, layer: KerasLayer, arrays: Any) -> Iterator[str]:
    """Trains the layer a step, in a functional model, and reloads that."""
    given = [tf.constant(array) for array in arrays["inputs"]]
    kept = [i for i, array in enumerate(given) if not _is_key(array)]
    state: Any = layer._state
    shapes = {path: aval.shape for path, aval in state.model.functions[0].inputs}
    inputs: list[Any] = list(given)
    for i, shape in zip(kept, shapes.values(), strict=True):
        sizes = [size if isinstance(size, int) else None for size in shape]
        inputs[i] = keras.Input(batch_shape=sizes, dtype=given[i].dtype.name)
    model = keras.Model(
        [inputs[i] for i in kept], keras.tree.flatten(layer(_nested(facts, inputs)))
    )
    taken = [given[i] for i in kept]
    before = {path: variable.numpy() for path, variable in layer.params.items()}
    with tf.GradientTape() as tape:
        results = model(taken)
        losses = [tf.reduce_mean(r**2) for r in results if r.dtype.is_floating]
        total = tf.add_n([tf.cast(loss, tf.float32) for loss in losses])
    trained = [variable.value for variable in model.trainable_weights]
    gradients = tape.gradient(total, trained, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    keras.optimizers.Adam(1e-3).apply(gradients, model.trainable_weights)
    moved = [p for p, v in layer.params.items() if (v.numpy() != before[p]).any()]
    frozen = [p for p, v in layer.params.items() if not v.trainable]
    if not moved or set(moved) & set(frozen):
        yield f"a step of adam changes {moved}, and {frozen} are frozen"
    model.save(folder / "model.keras")
    again = keras.models.load_model(folder / "model.keras")
    _draw_next(layer, given)
    wanted = [np.asarray(result) for result in model(taken)]
    _draw_next(again.get_layer("layer"), given)
    yield from compare("reloaded, ", facts["outputs"], again(taken), wanted, 1e-6)
    (folder / "model.keras").unlink()


def _draw_next(layer: Any, inputs: Any) -> None:
    """Has the layer draw the key next that JAX was given, if there is one among the inputs."""
    for words in filter(_is_key, inputs):
        layer._keys.state.assign(tf.cast(words, tf.int64))


def _nested(facts: Any, inputs: Any) -> Any:
    arguments = filled(facts["arguments"], inputs)
    taken = [a for a in arguments if not _is_key(a)]
    return taken[0] if len(taken) == 1 else taken


def _is_key(array: Any) -> Any:
    """Returns whether an array is the words of a PRNG key."""
    return tf.is_tensor(array) and array.dtype == tf.uint32 and array.shape == (2,)


def main(exported: Path, report_path: Path, *names: str) -> None:
    """Checks the models named, or all that were exported."""
    report = Report(report_path)
    report.head({"tensorflow": tf.__version__, "keras": keras.__version__})
    wanted = names or sorted(p.parent.name for p in exported.glob("*/model.json"))
    one_by_one(report, wanted, lambda name: layer_differences(exported / name))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
