"""Saving, loading and calling a model of 75 MB, with captured weights and with variables.

Each contestant runs in a fresh process, with a JAX release whose jax2tf supports symbolic shapes.
`--buckets` measures the time that buckets add to a save, in one process. `--megabytes` measures
saving that many megabytes of weights, compared with tf.saved_model.save of the same variables.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import _measure

_STAGES = ("save", "load", "first answer", "first gradient")
_UNTIL_ANSWER = "save, load and first answer"
_CONTESTANTS = (
    "bridge, captured",
    "bridge, variables",
    "jax2tf, captured",
    "jax2tf, variables",
)
_BATCH, _LENGTH, _LAYERS, _WIDTH = 2, 16, 6, 512
_WITH, _WITHOUT = "with buckets", "without"
_BUCKETS = {"b": [1, 8, 32]}
_MIB = 2**20


def _save(who: str, model: Any, folder: str) -> None:
    import numpy as np
    import tensorflow as tf

    converter, how = who.split(", ")
    x = np.zeros((_BATCH, _LENGTH, _WIDTH), np.float32)
    shape = f"(b, n, {_WIDTH})"
    if converter == "bridge":
        from jax2tf_bridge import Signature, save

        if how == "captured":
            f = Signature(lambda x: model.apply(model.weights, x), [x], polymorphic_shapes=shape)
            save(folder, f)
        else:
            save(
                folder, Signature(model.apply, [x], polymorphic_shapes=shape), params=model.weights
            )
        return
    from jax.experimental import jax2tf

    module = tf.Module()
    if how == "captured":
        converted = jax2tf.convert(
            lambda x: model.apply(model.weights, x), polymorphic_shapes=[shape]
        )
    else:
        module.weights = {name: tf.Variable(value) for name, value in model.weights.items()}
        with_weights = jax2tf.convert(model.apply, polymorphic_shapes=[None, shape])
        converted = lambda x: with_weights(module.weights, x)  # noqa: E731
    spec = tf.TensorSpec((None, None, _WIDTH), tf.float32, name="x")
    module.serving_default = tf.function(converted, input_signature=[spec], autograph=False)
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    tf.saved_model.save(
        module, folder, signatures=module.serving_default.get_concrete_function(), options=options
    )


def measure_here(who: str) -> dict[str, Any]:
    """Measures the seconds of each stage, bytes on disk and peak memory, in this process."""
    import jax
    import numpy as np
    import tensorflow as tf

    from benchmarks._models import transformer

    model = transformer(_LAYERS, _WIDTH)
    x = np.random.default_rng(0).standard_normal((_BATCH, _LENGTH, _WIDTH), np.float32)
    # Starts both runtimes first: every process pays this once, whatever it saves.
    jax.jit(lambda a: a + 1)(np.ones(3, np.float32)).block_until_ready()
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        times = [time.perf_counter()]
        _save(who, model, folder)
        times.append(time.perf_counter())
        loaded = tf.saved_model.load(folder)
        times.append(time.perf_counter())
        tensor = tf.constant(x)
        answer = loaded.serving_default(tensor).numpy()
        times.append(time.perf_counter())
        with tf.GradientTape() as tape:
            tape.watch(tensor)
            total = tf.reduce_sum(loaded.serving_default(tensor))
        gradient = tape.gradient(total, tensor).numpy()
        times.append(time.perf_counter())
        files = {p.relative_to(folder): p.stat().st_size for p in Path(folder).rglob("*.*")}
    status = Path("/proc/self/status").read_text()
    peak = next(int(ln.split()[1]) << 10 for ln in status.splitlines() if ln.startswith("VmHWM"))
    expected, pull_back = jax.vjp(lambda x: model.apply(model.weights, x), x)
    np.testing.assert_allclose(answer, expected, rtol=1e-2, atol=1e-2)
    np.testing.assert_allclose(gradient, pull_back(expected * 0 + 1)[0], rtol=5e-2, atol=5e-2)
    result = {stage: b - a for stage, a, b in zip(_STAGES, times, times[1:], strict=False)}
    result[_UNTIL_ANSWER] = times[3] - times[0]
    return {
        **result,
        "graph": files[Path("saved_model.pb")],
        "total": sum(files.values()),
        "weights": sum(value.nbytes for value in model.weights.values()),
        "peak": peak,
    }


def _measure_in_fresh_process(who: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.saving", "--child", who]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        lines = process.stderr.strip().splitlines() or ["no message"]
        return {"error": next((ln for ln in reversed(lines) if "Error" in ln), lines[-1])[:200]}
    result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return result


def measure_buckets(rounds: int, json_path: Path | None) -> None:
    """Saves each model with and without buckets, in turn, and prints both times and their ratio."""
    import numpy as np
    import tensorflow as tf

    from benchmarks._models import mlp, transformer
    from jax2tf_bridge import Signature, save

    rows, measured = [], []
    for name, model in {"MLP": mlp(), "transformer": transformer(2, 64)}.items():
        x = model.inputs(_BATCH)
        signature = Signature(model.apply, [x], polymorphic_shapes=model.polymorphic_shape)
        wall: dict[str, list[float]] = {_WITH: [], _WITHOUT: []}
        processor: dict[str, list[float]] = {_WITH: [], _WITHOUT: []}
        for i in range(rounds + 1):
            _measure.print_progress(f"{name}, round {i} of {rounds}")
            answers = []
            for who in [_WITH, _WITHOUT][:: 1 if i % 2 else -1]:
                with tempfile.TemporaryDirectory() as folder:
                    gc.collect()  # otherwise a save may collect the garbage of the one before
                    clocks = (time.perf_counter, time.process_time)
                    before = [clock() for clock in clocks]
                    save(
                        Path(folder) / "model",
                        signature,
                        params=model.weights,
                        buckets=_BUCKETS if who == _WITH else None,
                    )
                    after = [clock() for clock in clocks]
                    if i == 0:  # warms up, and keeps the results to compare
                        loaded = tf.saved_model.load(Path(folder) / "model")
                        answers.append(loaded.serving_default(x).numpy())
                        continue
                wall[who].append(after[0] - before[0])
                processor[who].append(after[1] - before[1])
            if answers:
                np.testing.assert_allclose(answers[0], answers[1], rtol=1e-2, atol=1e-2)
        for who in (_WITH, _WITHOUT):
            row: dict[str, Any] = {
                "model": name,
                "who": who,
                "wall": _measure.Spread.of(wall[who]),
                "wall ratio": _measure.compute_ratios(wall, who, _WITHOUT),
                "cpu": _measure.Spread.of(processor[who]),
                "cpu ratio": _measure.compute_ratios(processor, who, _WITHOUT),
            }
            measured.append(row)
            texts = [
                text
                for kind in ("wall", "cpu")
                for text in (
                    _measure.seconds_text(row[kind].median),
                    row[f"{kind} ratio"].ratio_text() if who == _WITH else "1.00",
                )
            ]
            rows.append([name, who, *texts])
    header = ["model", "saved", "save", "x without", "CPU time", "x without"]
    _measure.report("Saving with buckets", header, rows, measured, json_path=json_path)


_TENSORFLOW, _PARAMS, _CAPTURED = "TensorFlow", "bridge, params", "bridge, captured"
_SAVERS = (_TENSORFLOW, _PARAMS, _CAPTURED)
_ROWS = 1024


def _make_layers(count: int, megabytes: int, kind: str) -> dict[str, Any]:
    """Makes distinct matrices of 1024 rows."""
    import jax.numpy as jnp
    import numpy as np

    layers: dict[str, Any] = {}
    for number in range(count):
        # Filled in place, because temporary arrays would raise the peak memory.
        array = np.empty((_ROWS, megabytes * _MIB // 4 // _ROWS), np.float32)
        array[...] = np.arange(array.shape[1], dtype=np.float32) * 1e-6 + number
        layers[f"layer_{number}"] = (
            array if kind == "NumPy" else jnp.array(array).block_until_ready()
        )
    return layers


def _sum_columns(params: Any, x: Any) -> Any:
    for matrix in params.values():
        x = x + (x @ matrix)[:, :1]
    return x


def _save_layers(who: str, params: Any, folder: str) -> None:
    import numpy as np
    import tensorflow as tf

    from jax2tf_bridge import Signature, save

    if who == _TENSORFLOW:
        module = tf.Module()
        module.params = {name: tf.Variable(np.asarray(value)) for name, value in params.items()}
        tf.saved_model.save(module, folder)
        return
    x, shape = np.ones((2, _ROWS), np.float32), f"(b, {_ROWS})"
    if who == _PARAMS:
        save(folder, Signature(_sum_columns, [x], polymorphic_shapes=shape), params=params)
    else:
        captured = Signature(lambda x: _sum_columns(params, x), [x], polymorphic_shapes=shape)
        save(folder, captured)


def _read_memory(field: str) -> int:
    """Reads VmRSS or VmHWM of this process, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field}")


def measure_layers_here(who: str, kind: str, count: int, megabytes: int) -> dict[str, float]:
    """Measures the seconds of a save, and the peak memory above the memory before the weights."""
    with tempfile.TemporaryDirectory() as folder:
        # Saves something small first: imports and setup do not depend on the size.
        _save_layers(who, _make_layers(2, 1, kind), f"{folder}/small")
        gc.collect()
        before = _read_memory("VmRSS")
        params = _make_layers(count, megabytes, kind)
        os.sync()
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak
        wall, processor = time.perf_counter(), time.process_time()
        _save_layers(who, params, f"{folder}/model")
        return {
            "wall": time.perf_counter() - wall,
            "cpu": time.process_time() - processor,
            "peak": (_read_memory("VmHWM") - before) / (count * megabytes * _MIB),
        }


def measure_size(options: argparse.Namespace) -> None:
    """Saves weights in fresh processes that take turns, and prints times, peaks and ratios."""
    count = max(1, options.megabytes // options.leaf_megabytes)
    rows, measured = [], []
    for kind in ("NumPy", "JAX"):
        results_by_name: dict[str, list[dict[str, float]]] = {who: [] for who in _SAVERS}
        for i in range(options.rounds):
            _measure.print_progress(f"{kind}, round {i + 1} of {options.rounds}")
            for who in [*_SAVERS[i % 3 :], *_SAVERS[: i % 3]]:
                sizes = [str(count), str(options.leaf_megabytes)]
                command = [sys.executable, "-m", "benchmarks.saving", "--layers", who, kind, *sizes]
                process = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results_by_name[who].append(json.loads(process.stdout.splitlines()[-1]))
        for who in _SAVERS:
            row: dict[str, Any] = {"leaves": kind, "who": who}
            texts = []
            for clock in ("wall", "cpu"):
                times = {w: [result[clock] for result in results_by_name[w]] for w in _SAVERS}
                row[clock] = _measure.Spread.of(times[who])
                row[f"{clock} ratio"] = _measure.compute_ratios(times, who, _TENSORFLOW)
                texts.append(_measure.seconds_text(row[clock].median))
                texts.append("1.00" if who == _TENSORFLOW else row[f"{clock} ratio"].ratio_text())
            row["peak"] = _measure.Spread.of([result["peak"] for result in results_by_name[who]])
            measured.append(row)
            rows.append([kind, who, *texts, f"{row['peak'].median:.2f}"])
    header = ["leaves", "saved by", "save", "x TensorFlow", "CPU time", "x TensorFlow"]
    _measure.report(
        f"{count} leaves of {options.leaf_megabytes} MiB",
        [*header, "peak memory / weights"],
        rows,
        measured,
        json_path=options.json,
    )


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=5)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument(
        "--buckets", action="store_true", help="measure what buckets add to a save, and only that"
    )
    parser.add_argument("--megabytes", type=int, help="save so many of weights, and only that")
    parser.add_argument(
        "--leaf-megabytes", type=int, default=100, help="of each of them (%(default)s)"
    )
    parser.add_argument("--layers", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure_here(options.child)))
        return
    if options.layers:
        who, kind, count, megabytes = options.layers
        print(json.dumps(measure_layers_here(who, kind, int(count), int(megabytes))))
        return
    if options.megabytes:
        measure_size(options)
        return
    if options.buckets:
        measure_buckets(options.rounds, options.json)
        return
    results_by_name: dict[str, list[dict[str, Any]]] = {who: [] for who in _CONTESTANTS}
    for i in range(options.rounds):
        _measure.print_progress(f"round {i + 1} of {options.rounds}")
        shift = i % len(results_by_name)
        for who in [*_CONTESTANTS[shift:], *_CONTESTANTS[:shift]]:
            if not any("error" in result for result in results_by_name[who]):
                results_by_name[who].append(_measure_in_fresh_process(who))
    rows, measured, notes = [], [], []
    working = [who for who in _CONTESTANTS if "error" not in results_by_name[who][-1]]
    for who in _CONTESTANTS:
        if who not in working:
            notes.append(f"{who} does not run: {results_by_name[who][-1]['error']}")
            continue
        results = results_by_name[who]
        row: dict[str, Any] = {"who": who}
        texts = []
        for stage in (*_STAGES, _UNTIL_ANSWER):
            row[stage] = _measure.Spread.of([r[stage] for r in results])
            texts.append(_measure.seconds_text(row[stage].median))
        for baseline in ("jax2tf, captured", "bridge, variables"):
            if baseline not in working:
                texts.append("-")
                continue
            times = {w: [r[_UNTIL_ANSWER] for r in results_by_name[w]] for w in {who, baseline}}
            row[f"x {baseline}"] = _measure.compute_ratios(times, who, baseline)
            texts.append(row[f"x {baseline}"].ratio_text())
        row |= {key: results[-1][key] for key in ("graph", "total", "weights")}
        row["peak"] = _measure.Spread.of([r["peak"] for r in results])
        texts += [
            f"{row['graph'] / 1e6:.2f} MB",
            f"{row['total'] / row['weights']:.3f}",
            f"{row['peak'].median / 1e9:.2f} GB",
        ]
        measured.append(row)
        rows.append([who, *texts])
    header = ["saved by", *_STAGES, _UNTIL_ANSWER, "x jax2tf, captured", "x bridge, variables"]
    header += ["saved_model.pb", "total / weights", "peak memory"]
    _measure.report(
        "A transformer of 75 MB", header, rows, measured, json_path=options.json, notes=notes
    )


if __name__ == "__main__":
    main()
