"""Real models with open sizes: conversion, saving and serving, compared with jax2tf.

Each model of tests/models is converted, saved, loaded and called in fresh processes.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import _measure

_MAX_ERROR_LENGTH = 110
_DEFAULT_SAVES = 2

Save = Callable[[Any, Any, Path], object]
"""Saves a model, given its table entry and its built form, in a folder."""


def _make_bridge_save() -> Save:
    import jax2tf_bridge.from_jax  # noqa: F401 - which save imports when it is called
    from tests.models.expected import save_model

    return lambda model, built, folder: save_model(model, built, folder)


def _make_cpu_bridge_save() -> Save:
    import jax2tf_bridge.from_jax  # noqa: F401 - which save imports when it is called
    from tests.models.expected import save_model

    return lambda model, built, folder: save_model(model, built, folder, platforms=["cpu"])


def _make_jax2tf_save() -> Save:
    from jax.experimental import jax2tf

    return lambda model, built, folder: _save_with_jax2tf(jax2tf, model, built, folder)


_CONVERTERS: dict[str, Callable[[], Save]] = {
    "bridge": _make_bridge_save,
    "bridge, cpu only": _make_cpu_bridge_save,
    "jax2tf": _make_jax2tf_save,
}
"""Makers of the save functions; they do the imports, which are not measured."""


def _save_with_jax2tf(jax2tf: Any, model: Any, built: Any, folder: Path) -> None:
    """Saves as users of jax2tf do: weights are variables, and keys are their words."""
    import jax
    import tensorflow as tf

    module = tf.Module()
    leaves, tree = jax.tree_util.tree_flatten(built.params)
    module.leaves = [tf.Variable(leaf) for leaf in leaves]

    def over_words(leaves: Any, *args: Any) -> Any:
        params = jax.tree_util.tree_unflatten(tree, leaves)
        return built.function(params, *map(_wrap_key, args, built.example))

    shapes = list(model.polymorphic_shapes)
    converted = jax2tf.convert(over_words, polymorphic_shapes=[None, *shapes])
    module.serving_default = tf.function(
        lambda *args: converted(list(module.leaves), *args),
        input_signature=_make_specs(built.example, shapes),
        autograph=False,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    concrete = module.serving_default.get_concrete_function()
    del concrete
    tf.saved_model.save(module, str(folder), options=options)


def _wrap_key(argument: Any, example: Any) -> Any:
    """Wraps the words of a key if the example is a key."""
    import jax

    return jax.random.wrap_key_data(argument) if _is_key(example) else argument


def _is_key(value: Any) -> bool:
    import jax

    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _make_specs(example: Any, shapes: list[Any]) -> list[Any]:
    """Makes the tf.TensorSpec of each argument; open sizes are None."""
    import jax
    import numpy as np
    import tensorflow as tf

    def spec(leaf: Any, text: str | None) -> Any:
        array = _to_numpy(leaf)
        sizes = jax.export.symbolic_shape(text, like=array.shape) if text else array.shape
        shape = [size if isinstance(size, (int, np.integer)) else None for size in sizes]
        return tf.TensorSpec(shape, array.dtype)

    return [
        {name: spec(leaf, shape[name]) for name, leaf in argument.items()}
        if isinstance(argument, dict)
        else spec(argument, shape)
        for argument, shape in zip(example, shapes, strict=True)
    ]


def _to_numpy(leaf: Any) -> Any:
    """Converts an array to NumPy, and a key to its words."""
    import jax
    import numpy as np

    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def measure_here(converter: str, name: str, rounds: int) -> dict[str, Any]:
    """Measures one model in this process, which must be fresh: seconds, bytes and ratios.

    Without rounds, the model is saved but not called.
    """
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import numpy as np
    import tensorflow as tf

    from tests.models.comparing import compare
    from tests.models.table import by_name

    model = by_name(name)
    built = model.build()
    save = _CONVERTERS[converter]()
    jitted = jax.jit(built.function)
    # Starts both runtimes first: every process pays this once, whatever it saves.
    jax.jit(lambda a: a + 1)(np.ones(3, np.float32)).block_until_ready()
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        # Otherwise a full garbage collection of 0.2 s may fall into the save.
        gc.collect()
        start = time.perf_counter(), time.process_time()
        save(model, built, path)
        elapsed = time.perf_counter() - start[0], time.process_time() - start[1]
        figures = {"seconds": elapsed[0], "cpu_seconds": elapsed[1]}
        if not rounds:
            return figures
        graph = (path / "saved_model.pb").stat().st_size
        loaded = tf.saved_model.load(str(path))
        calls: dict[str, Callable[[], Any]] = {}
        for args in built.calls:
            tensors = jax.tree_util.tree_map(lambda a: tf.constant(_to_numpy(a)), args)
            answers = tf.nest.flatten(loaded.serving_default(*tensors))
            expected = [
                np.asarray(e) for e in jax.tree_util.tree_leaves(jitted(built.params, *args))
            ]
            names = [str(i) for i in range(len(expected))]
            problems = list(compare("result ", names, answers, expected, model.tolerance))
            if problems:
                raise RuntimeError(f"it answers wrongly: {problems[0]}")
            calls = {
                converter: lambda tensors=tensors: [  # type: ignore[misc]
                    r.numpy() for r in tf.nest.flatten(loaded.serving_default(*tensors))
                ]
            }
            on_device = jax.device_put((built.params, *args))
            calls["jax.jit"] = lambda tensors=on_device: jax.block_until_ready(  # type: ignore[misc]
                jitted(*tensors)
            )
        times = _measure.measure_interleaved(calls, rounds=rounds)
    ratio = _measure.compute_ratios(times, converter, "jax.jit")
    sizes = [np.size(leaf) for leaf in jax.tree_util.tree_leaves(built.params)]
    return {
        **figures,
        "graph": graph,
        "weights": sum(sizes),
        "jax.jit": _measure.Spread.of(times["jax.jit"]).median,
        "ratio": [ratio.median, ratio.low, ratio.high],
    }


def _measure_in_fresh_process(converter: str, name: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.models", "--child", converter, name]
    command += ["--rounds", str(rounds)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
        return result
    return {"error": _find_error_line(process.stderr, process.returncode)}


def _find_error_line(stderr: str, status: int) -> str:
    """Returns the line of a traceback with the error, plus MLIR's most specific line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    mlir_lines = [
        line for line in lines if "failed to legalize" in line or "custom_call_v2" in line
    ]
    message = (errors or lines or [f"ended with {status}"])[-1]
    if mlir_lines and mlir_lines[0] not in message:
        message = f"{message[: _MAX_ERROR_LENGTH // 2]}... {mlir_lines[0]}"
    return message[: 2 * _MAX_ERROR_LENGTH]


def _measure_model(name: str, saves: int, rounds: int) -> dict[str, dict[str, Any]]:
    """Measures one model by converter; saves take turns, and only the last one is called."""
    results_by_name: dict[str, dict[str, Any]] = {
        converter: {"saves": []} for converter in _CONVERTERS
    }
    for i in range(saves):
        is_last = i == saves - 1
        for converter, result in results_by_name.items():
            if "error" in result:
                continue
            _measure.print_progress(f"{name}, {converter}, {i + 1} of {saves}")
            # The number of platforms does not affect calls.
            call_rounds = rounds if is_last and converter != "bridge, cpu only" else 0
            figures = _measure_in_fresh_process(converter, name, call_rounds)
            result.update(figures)
            if "error" not in figures:
                result["saves"].append(figures["cpu_seconds"])
    return results_by_name


def _make_row(library: str, name: str, results_by_name: dict[str, dict[str, Any]]) -> list[str]:
    bridge, jax2tf = results_by_name["bridge"], results_by_name["jax2tf"]
    texts = [name, library]
    if "error" in bridge:
        return [*texts, *["-"] * 7, "FAILS", _format_serving_ratio(jax2tf)]
    cpu = _measure.Spread.of(bridge["saves"]).median
    texts += [f"{bridge['weights'] / 1e6:.1f}", _measure.seconds_text(cpu)]
    times = {converter: result["saves"] for converter, result in results_by_name.items()}
    for converter in ("bridge", "bridge, cpu only"):
        if "error" in jax2tf or "error" in results_by_name[converter]:
            texts.append("-")
            continue
        ratio = _measure.compute_ratios(times, converter, "jax2tf")
        results_by_name[converter]["save, to jax2tf"] = ratio
        texts.append(f"{ratio.median:.2f}")
    sizes = ["-" if "error" in r else f"{r['graph'] / 1e6:.2f} MB" for r in (bridge, jax2tf)]
    return [
        *texts,
        *sizes,
        _measure.seconds_text(bridge["jax.jit"]),
        _format_serving_ratio(bridge),
        _format_serving_ratio(jax2tf),
    ]


def _format_serving_ratio(result: dict[str, Any]) -> str:
    return "fails" if "error" in result else _measure.Spread(*result["ratio"]).ratio_text()


def main() -> None:
    parser = _measure.make_parser(__doc__, rounds=9)
    parser.add_argument("--models", nargs="+", help="those alone")
    parser.add_argument(
        "--saves", type=int, default=_DEFAULT_SAVES, help="processes that save each"
    )
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        converter, name = options.child
        print(json.dumps(measure_here(converter, name, options.rounds)))
        return
    os.environ["KERAS_BACKEND"] = "jax"
    from tests.models.table import MODELS

    rows, measured, notes = [], [], []
    for model in MODELS:
        if options.models and model.name not in options.models:
            continue
        results_by_name = _measure_model(model.name, options.saves, options.rounds)
        for converter, result in results_by_name.items():
            if "error" in result:
                notes.append(f"{model.name}, {converter}: {result['error']}")
        rows.append(_make_row(model.library, model.name, results_by_name))
        measured.append({"model": model.name, **results_by_name})
    header = ["model", "written with", "million weights", "save, CPU time", "x jax2tf"]
    header += ["cpu only, x jax2tf", "saved_model.pb", "jax2tf's", "jax.jit"]
    header += ["served, x jax.jit", "jax2tf, x jax.jit"]
    _measure.report(
        "Real models with open sizes", header, rows, measured, json_path=options.json, notes=notes
    )


if __name__ == "__main__":
    main()
