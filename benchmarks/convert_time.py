"""Time from convert() to the first answer and the first gradient, each in a fresh process."""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from benchmarks import _measure

_MODELS = ("MLP", "conv net", "transformer")
_BASELINE = "jax2tf"
_STAGES = ("first answer", "first gradient")


def _bridge(**options: Any) -> Callable[..., Any]:
    from jax2tf_bridge import convert

    return lambda f, shapes: convert(f, polymorphic_shapes=shapes, **options)


def _jax2tf() -> Callable[..., Any]:
    from jax.experimental import jax2tf

    return lambda f, shapes: jax2tf.convert(f, polymorphic_shapes=shapes)


_CONTESTANTS: dict[str, Callable[[], Callable[..., Any]]] = {
    "bridge": _bridge,
    "bridge, cpu only": lambda: _bridge(native_serialization_platforms=("cpu",)),
    "jax2tf": _jax2tf,
}


def measure_here(who: str, model_name: str) -> dict[str, Any]:
    """Measures the wall and CPU seconds of each stage in this process, which must be fresh."""
    import jax
    import numpy as np
    import tensorflow as tf

    from benchmarks._models import MODELS

    model = MODELS[model_name]()
    weights = {name: tf.Variable(value) for name, value in model.weights.items()}
    x = tf.constant(model.inputs(8))
    convert = _CONTESTANTS[who]()
    # Starts both runtimes first: every process pays this once, whatever it converts.
    jax.jit(lambda a: a + 1)(np.ones(3, np.float32)).block_until_ready()
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))

    # Otherwise a full garbage collection of 0.2 s may fall into either stage.
    gc.collect()
    start, cpu_start = time.perf_counter(), time.process_time()
    converted = convert(model.apply, [None, model.polymorphic_shape])
    spec = tf.TensorSpec((None, *model.shape), tf.float32)
    f = tf.function(lambda a: converted(weights, a), input_signature=[spec], autograph=False)
    answer = f(x).numpy()
    answered, cpu_answered = time.perf_counter(), time.process_time()

    @tf.function(autograph=False)
    def gradient(a: Any) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(f(a))
        return tape.gradient(total, weights)

    gradients = gradient(x)
    differentiated, cpu_differentiated = time.perf_counter(), time.process_time()
    expected, pull_back = jax.vjp(model.apply, model.weights, x.numpy())
    np.testing.assert_allclose(answer, expected, rtol=1e-3, atol=1e-3)
    for name, value in pull_back(np.ones_like(expected))[0].items():
        np.testing.assert_allclose(gradients[name], value, rtol=1e-2, atol=1e-2)
    return {
        _STAGES[0]: answered - start,
        f"{_STAGES[0]}, CPU": cpu_answered - cpu_start,
        _STAGES[1]: differentiated - answered,
        f"{_STAGES[1]}, CPU": cpu_differentiated - cpu_answered,
    }


def _measure_in_fresh_process(who: str, model_name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.convert_time", "--child", who, model_name]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or ["no message"]
        return {"error": next((ln for ln in reversed(lines) if "Error" in ln), lines[-1])[:200]}
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=5)
    parser.add_argument("--models", nargs="+", default=list(_MODELS), choices=_MODELS)
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure_here(*options.child)))
        return
    rows, measured, notes = [], [], []
    for name in options.models:
        results_by_name: dict[str, list[dict[str, Any]]] = {who: [] for who in _CONTESTANTS}
        for i in range(options.rounds):
            _measure.print_progress(f"{name}, round {i + 1} of {options.rounds}")
            # Each round begins with another contestant.
            order = [*_CONTESTANTS][i % len(results_by_name) :] + [*_CONTESTANTS][
                : i % len(results_by_name)
            ]
            for who in order:
                if not any("error" in result for result in results_by_name[who]):
                    results_by_name[who].append(_measure_in_fresh_process(who, name))
        for who, results in results_by_name.items():
            if "error" in results[-1]:
                notes.append(f"{who} does not run the {name}: {results[-1]['error']}")
                continue
            row: dict[str, Any] = {"model": name, "who": who}
            texts = []
            for stage in _STAGES:
                row[stage] = _measure.Spread.of([r[stage] for r in results])
                texts.append(_measure.seconds_text(row[stage].median))
                if "error" in results_by_name[_BASELINE][-1]:
                    texts += ["-", "-"]
                    continue
                for key in (stage, f"{stage}, CPU"):
                    times = {w: [r[key] for r in results_by_name[w]] for w in (who, _BASELINE)}
                    row[f"{key}, to {_BASELINE}"] = _measure.compute_ratios(times, who, _BASELINE)
                    texts.append(row[f"{key}, to {_BASELINE}"].ratio_text())
            measured.append(row)
            rows.append([name, who, *texts])
    header = ["model", "converted by"]
    for stage in _STAGES:
        header += [stage, f"x {_BASELINE}", "CPU time, x"]
    _measure.report(
        "Time of convert + first call",
        header,
        rows,
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
