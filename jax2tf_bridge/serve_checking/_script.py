"""Runs calls of a SavedModel's signatures in the installed TensorFlow, for `serve-check`.

Runs by its path in environments with only TensorFlow, from Python 3.9 on:
`python _script.py PLAN FOLDER`. PLAN is a JSON file with the directory of the SavedModel and the
calls. FOLDER gets index.jsonl, with a line for the loaded model and one for each call, and
call-N.npz with the arrays of each call.
"""

from __future__ import annotations

import base64
import json
import os
import platform
import sys
from typing import Any

import numpy as np

_UNINFORMATIVE = (
    "Graph execution error:",
    "Detected at node",
    "<stack traces unavailable>",
    "2 root error(s) found.",
    "[[{{node",
)


def main(plan_file: str, folder: str) -> None:
    """Carries out the plan, and writes errors to the index."""
    # Python adds the folder of this file to the path, but its modules are not top-level.
    own_folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own_folder]
    import tensorflow as tf

    with open(plan_file, encoding="utf-8") as file:
        plan = json.load(file)
    with open(os.path.join(folder, "index.jsonl"), "w", encoding="utf-8") as index:

        def say(**facts: Any) -> None:
            index.write(json.dumps(facts) + "\n")
            index.flush()  # TensorFlow may end the process in the next call

        versions = {"tensorflow": tf.__version__, "python": platform.python_version()}
        try:
            model = tf.saved_model.load(plan["saved_model"])
        except Exception as e:
            say(error=_find_first_line(e), **versions)
            return
        say(error=None, **versions)
        for number, call in enumerate(plan["calls"]):
            arrays: list[Any] = []
            error = None
            try:
                _run(tf, model.signatures[call["signature"]], call, number, arrays)
            except Exception as e:
                error = _find_first_line(e)
            values = {f"a{i}": value for i, (_, _, _, value) in enumerate(arrays)}
            np.savez(os.path.join(folder, f"call-{number}.npz"), **values)
            say(error=error, arrays=[array[:3] for array in arrays])


def _run(tf: Any, function: Any, call: Any, number: int, arrays: list[Any]) -> None:
    """Appends kind, name, dtype and value of each result to `arrays`."""
    random = np.random.RandomState(number)
    inputs = {
        name: _make_tensor(tf, call["inputs"][name], random) for name in sorted(call["inputs"])
    }
    # A watched variable would forbid the call of a signature without a gradient.
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        sources = {n: x for n, x in inputs.items() if call["gradients"] and x.dtype.is_floating}
        tape.watch(list(sources.values()))
        results = function(**inputs)
        for name in sorted(results):
            arrays.append(
                ["output", name, results[name].dtype.name, _convert_to_array(tf, results[name])]
            )
        terms = [
            tf.reduce_sum(tf.cast(y, tf.float64) * random.standard_normal(y.shape))
            for _, y in sorted(results.items())
            if y.dtype.is_floating
        ]
        loss = tf.add_n(terms) if terms else None
    if loss is None or not sources:
        return
    zero = tf.UnconnectedGradients.ZERO
    for name, value in tape.gradient(loss, sources, unconnected_gradients=zero).items():
        dense = tf.convert_to_tensor(value)
        arrays.append(["gradient", name, dense.dtype.name, _convert_to_array(tf, dense)])


def _make_tensor(tf: Any, spec: Any, random: Any) -> Any:
    """Makes an input from a request, or of random values; integers are small, as for indices."""
    if "proto" in spec:
        return tf.io.parse_tensor(base64.b64decode(spec["proto"]), tf.as_dtype(spec["dtype"]))
    shape, dtype = spec["shape"], tf.as_dtype(spec["dtype"])
    if dtype == tf.string:
        return tf.fill(shape, "text")
    if dtype == tf.bool:
        return tf.constant(random.randint(0, 2, shape).astype(bool))
    if dtype.is_integer:
        bound = min(8, dtype.max + 1)
        return tf.cast(tf.constant(np.asarray(random.randint(0, bound, shape), np.int32)), dtype)
    values = np.asarray(random.standard_normal(shape))
    if dtype.is_complex:
        values = values + 1j * random.standard_normal(shape)
    if dtype in (tf.float64, tf.complex128):
        return tf.constant(values)
    narrow = np.complex64 if dtype.is_complex else np.float32
    return tf.cast(tf.constant(values.astype(narrow)), dtype)


def _convert_to_array(tf: Any, tensor: Any) -> Any:
    """Converts a tensor to a dtype that every numpy has and .npz files can hold."""
    if tensor.dtype == tf.string:
        return np.asarray(tensor.numpy()).astype("S")
    if tensor.dtype.is_floating and tensor.dtype != tf.float64:
        return tf.cast(tensor, tf.float32).numpy()
    if tensor.dtype.is_integer and tensor.dtype.size == 1:
        return tf.cast(tensor, tf.int32).numpy()
    return tensor.numpy()


def _find_first_line(error: BaseException) -> str:
    """Returns the first informative line; TensorFlow's messages begin with the location."""
    text = getattr(error, "message", None) or str(error)
    lines = [line.strip() for line in str(text).splitlines()]
    lines = [line for line in lines if line and not line.startswith(_UNINFORMATIVE)]
    return f"{type(error).__name__}: {lines[0] if lines else 'no text'}"[:500]


if __name__ == "__main__":
    main(*sys.argv[1:])
