"""Time to load a SavedModel and to get its first answer, in a fresh process without JAX."""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _measure

_MODELS = ("MLP", "conv net", "transformer")
_BASELINE = "jax2tf"
_PRECOMPILED = ("bridge, precompiled", "bridge, bucket, precompiled")
_CONTESTANTS = ("bridge", *_PRECOMPILED, "bridge, without XLA", _BASELINE)
_STAGES = ("load", "first answer")
_BATCH = 8


def save_here(who: str, name: str, folder: Path) -> None:
    """Saves a model with its weights as variables, and an example input with its answer."""
    import jax
    import numpy as np
    import tensorflow as tf

    from benchmarks._models import MODELS

    model = MODELS[name]()
    x = model.inputs(_BATCH)
    np.save(folder / "inputs.npy", x)
    np.save(folder / "expected.npy", jax.jit(model.apply)(model.weights, x))
    path = str(folder / "model")
    if who != _BASELINE:
        from jax2tf_bridge import Signature, Target, save

        save(
            path,
            Signature(
                model.apply, [x], polymorphic_shapes=model.polymorphic_shape, example={"x": x}
            ),
            params=model.weights,
            target=Target.widest(xla=False) if who == "bridge, without XLA" else None,
            buckets={"b": [_BATCH]} if "bucket" in who else None,
            precompile=who in _PRECOMPILED,
        )
        return
    from jax.experimental import jax2tf

    module = tf.Module()
    module.weights = {name: tf.Variable(value) for name, value in model.weights.items()}
    converted = jax2tf.convert(model.apply, polymorphic_shapes=[None, model.polymorphic_shape])
    spec = tf.TensorSpec((None, *model.shape), tf.float32, name="x")
    module.serving_default = tf.function(
        lambda x: converted(module.weights, x), input_signature=[spec], autograph=False
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(
        module,
        path,
        signatures=module.serving_default.get_concrete_function(),
        options=options,
    )


def ask_here(folder: Path) -> dict[str, float]:
    """Measures the wall and CPU seconds of each stage in this process, which must be fresh."""
    import numpy as np
    import tensorflow as tf

    x = tf.constant(np.load(folder / "inputs.npy"))
    # Starts XLA first: every process pays this once, whatever it loads.
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))
    # Otherwise a full garbage collection, longer than an answer, may fall into either stage.
    gc.collect()
    start = time.perf_counter(), time.process_time()
    model = tf.saved_model.load(str(folder / "model"))
    loaded = time.perf_counter(), time.process_time()
    (answer,) = model.signatures["serving_default"](x).values()
    answer = answer.numpy()
    answered = time.perf_counter(), time.process_time()
    np.testing.assert_allclose(answer, np.load(folder / "expected.npy"), rtol=1e-3, atol=1e-3)
    return {
        "load": loaded[0] - start[0],
        "load, CPU": loaded[1] - start[1],
        "first answer": answered[0] - loaded[0],
        "first answer, CPU": answered[1] - loaded[1],
    }


def _run_in_fresh_process(arguments: Sequence[str], flags: str = "") -> str:
    environment = {
        **os.environ,
        "TF_XLA_FLAGS": f"{os.environ.get('TF_XLA_FLAGS', '')} {flags}".strip(),
    }
    command = [sys.executable, "-m", "benchmarks.second_process", *arguments]
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or ["no message"]
        raise RuntimeError(next((ln for ln in reversed(lines) if "Error" in ln), lines[-1])[:200])
    return process.stdout


def _ask_in_fresh_process(who: str, folder: Path) -> dict[str, float]:
    flags = ""
    if who in _PRECOMPILED:
        cache = folder / "model/assets.extra/xla_cache"
        flags = f"--tf_xla_persistent_cache_directory={cache}"
        flags += " --tf_xla_persistent_cache_read_only=true"
    output = _run_in_fresh_process(["--ask", str(folder)], flags)
    result: dict[str, float] = json.loads(output.splitlines()[-1])
    return result


def main() -> None:
    """Measures and prints a table."""
    parser = _measure.make_parser(__doc__, rounds=7)
    parser.add_argument("--models", nargs="+", default=list(_MODELS), choices=_MODELS)
    parser.add_argument("--save", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.save:
        who, name, folder = options.save
        save_here(who, name, Path(folder))
        return
    if options.ask:
        print(json.dumps(ask_here(options.ask)))
        return
    rows, measured, notes = [], [], []
    for name in options.models:
        with tempfile.TemporaryDirectory() as temporary:
            folders = {who: Path(temporary) / str(i) for i, who in enumerate(_CONTESTANTS)}
            results_by_name: dict[str, list[dict[str, float]]] = {}
            for who, folder in folders.items():
                folder.mkdir()
                _measure.print_progress(f"{name}, saved by {who}")
                try:
                    _run_in_fresh_process(["--save", who, name, str(folder)])
                    _ask_in_fresh_process(who, folder)
                except RuntimeError as e:
                    notes.append(f"{who} does not run the {name}: {e}")
                else:
                    results_by_name[who] = []
            for i in range(options.rounds):
                _measure.print_progress(f"{name}, round {i + 1} of {options.rounds}")
                first = i % max(1, len(results_by_name))
                order = [*results_by_name][first:] + [*results_by_name][:first]
                for who in order:
                    results_by_name[who].append(_ask_in_fresh_process(who, folders[who]))
        for who, results in results_by_name.items():
            row: dict[str, Any] = {"model": name, "who": who}
            texts = []
            for stage in _STAGES:
                row[stage] = _measure.Spread.of([r[stage] for r in results])
                texts.append(_measure.seconds_text(row[stage].median))
                for key in (stage, f"{stage}, CPU"):
                    if _BASELINE not in results_by_name:
                        texts.append("-")
                        continue
                    times = {w: [r[key] for r in results_by_name[w]] for w in (who, _BASELINE)}
                    row[f"{key}, to {_BASELINE}"] = _measure.compute_ratios(times, who, _BASELINE)
                    texts.append(row[f"{key}, to {_BASELINE}"].ratio_text())
            measured.append(row)
            rows.append([name, who, *texts])
    header = ["model", "saved by"]
    for stage in _STAGES:
        header += [stage, f"x {_BASELINE}", "CPU time, x"]
    _measure.report(
        "A second process",
        header,
        rows,
        measured,
        json_path=options.json,
        notes=notes,
    )


if __name__ == "__main__":
    main()
