"""Real models with open sizes: what converts, saves and runs, and what it costs, against jax2tf.

Each is converted, saved, loaded and asked in fresh processes. They are those of tests/models.
"""

from __future__ import annotations

import argparse
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

_CONVERTERS = ("bridge", "jax2tf")
_LONGEST = 110


def _with_the_bridge(model: Any, built: Any, folder: Path) -> None:
    from tests.models.expected import save_model

    save_model(model, built, folder)


def _with_jax2tf(model: Any, built: Any, folder: Path) -> None:
    """As its users write it: weights in variables, and keys as their words."""
    import jax
    import tensorflow as tf
    from jax.experimental import jax2tf

    module = tf.Module()
    leaves, tree = jax.tree_util.tree_flatten(built.params)
    module.leaves = [tf.Variable(leaf) for leaf in leaves]

    def over_words(leaves: Any, *args: Any) -> Any:
        params = jax.tree_util.tree_unflatten(tree, leaves)
        return built.function(params, *map(_as_key, args, built.example))

    shapes = list(model.polymorphic_shapes)
    converted = jax2tf.convert(over_words, polymorphic_shapes=[None, *shapes])
    module.serving_default = tf.function(
        lambda *args: converted(list(module.leaves), *args),
        input_signature=_specs(built.example, shapes),
        autograph=False,
    )
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=True)
    concrete = module.serving_default.get_concrete_function()
    del concrete
    tf.saved_model.save(module, str(folder), options=options)


def _as_key(argument: Any, example: Any) -> Any:
    """A key made of its words, where the example is one."""
    import jax

    return jax.random.wrap_key_data(argument) if _is_key(example) else argument


def _is_key(value: Any) -> bool:
    import jax

    return isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key)


def _specs(example: Any, shapes: list[Any]) -> list[Any]:
    """What each argument is to TensorFlow: None where a size is open."""
    import jax
    import numpy as np
    import tensorflow as tf

    def spec(leaf: Any, text: str | None) -> Any:
        array = _words(leaf)
        sizes = jax.export.symbolic_shape(text, like=array.shape) if text else array.shape
        shape = [size if isinstance(size, (int, np.integer)) else None for size in sizes]
        return tf.TensorSpec(shape, array.dtype)

    return [
        {name: spec(leaf, shape[name]) for name, leaf in argument.items()}
        if isinstance(argument, dict)
        else spec(argument, shape)
        for argument, shape in zip(example, shapes, strict=True)
    ]


def _words(leaf: Any) -> Any:
    """An array as it crosses to TensorFlow."""
    import jax
    import numpy as np

    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def measure_here(converter: str, name: str, rounds: int) -> dict[str, Any]:
    """What came of one model in this process alone: seconds, bytes, ratios; or the error."""
    os.environ["KERAS_BACKEND"] = "jax"
    import jax
    import numpy as np
    import tensorflow as tf

    from tests.models.comparing import compare
    from tests.models.table import by_name

    model = by_name(name)
    built = model.build()
    jitted = jax.jit(built.function)
    # What a process pays once, whoever saves: the two runtimes start.
    jax.jit(lambda a: a + 1)(np.ones(3, np.float32)).block_until_ready()
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        start = time.perf_counter(), time.process_time()
        (_with_the_bridge if converter == "bridge" else _with_jax2tf)(model, built, path)
        saved = time.perf_counter() - start[0], time.process_time() - start[1]
        graph = (path / "saved_model.pb").stat().st_size
        loaded = tf.saved_model.load(str(path))
        calls: dict[str, Callable[[], Any]] = {}
        for args in built.calls:
            given = jax.tree_util.tree_map(lambda a: tf.constant(_words(a)), args)
            got = tf.nest.flatten(loaded.serving_default(*given))
            expected = [
                np.asarray(e) for e in jax.tree_util.tree_leaves(jitted(built.params, *args))
            ]
            names = [str(i) for i in range(len(expected))]
            wrong = list(compare("result ", names, got, expected, model.tolerance))
            if wrong:
                raise RuntimeError(f"it answers wrongly: {wrong[0]}")
            calls = {
                converter: lambda given=given: [  # type: ignore[misc]
                    r.numpy() for r in tf.nest.flatten(loaded.serving_default(*given))
                ]
            }
            on_device = jax.device_put((built.params, *args))
            calls["jax.jit"] = lambda given=on_device: jax.block_until_ready(  # type: ignore[misc]
                jitted(*given)
            )
        times = _measure.interleaved(calls, rounds=rounds)
    ratio = _measure.ratios(times, converter, "jax.jit")
    sizes = [np.size(leaf) for leaf in jax.tree_util.tree_leaves(built.params)]
    return {
        "seconds": saved[0],
        "cpu_seconds": saved[1],
        "graph": graph,
        "weights": sum(sizes),
        "jax.jit": _measure.Spread.of(times["jax.jit"]).median,
        "ratio": [ratio.median, ratio.low, ratio.high],
    }


def _in_a_fresh_process(converter: str, name: str, rounds: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.models", "--child", converter, name]
    command += ["--rounds", str(rounds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return result
    return {"error": _error_line(done.stderr, done.returncode)}


def _error_line(stderr: str, status: int) -> str:
    """The line of a traceback that says what went wrong; of MLIR's, the most telling one."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "Error" in line.split(":")[0]]
    telling = [line for line in lines if "failed to legalize" in line or "custom_call_v2" in line]
    found = (errors or lines or [f"ended with {status}"])[-1]
    if telling and telling[0] not in found:
        found = f"{found[: _LONGEST // 2]}... {telling[0]}"
    return found[: 2 * _LONGEST]


def _row(library: str, name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    bridge, other = (found[c] for c in _CONVERTERS)
    texts = [name, library]
    if "error" in bridge:
        return [*texts, "-", "FAILS", "-", "-", "-", "-", _verdict(other)]
    ratio = _measure.Spread(*bridge["ratio"]).ratio_text()
    texts += [f"{bridge['weights'] / 1e6:.1f}", "runs", f"{bridge['cpu_seconds']:.1f} s"]
    texts += [f"{bridge['graph'] / 1e6:.2f} MB", _measure.seconds_text(bridge["jax.jit"]), ratio]
    return [*texts, _verdict(other)]


def _verdict(result: dict[str, Any]) -> str:
    if "error" in result:
        return "fails"
    ratio = _measure.Spread(*result["ratio"]).ratio_text()
    return f"runs: {result['cpu_seconds']:.1f} s, {result['graph'] / 1e6:.2f} MB, {ratio}"


def main() -> None:
    parser = _measure.parser(__doc__, rounds=9)
    parser.add_argument("--models", nargs="+", help="those alone")
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
        found = {}
        for converter in _CONVERTERS:
            _measure.progress(f"{model.name}, {converter}")
            found[converter] = _in_a_fresh_process(converter, model.name, options.rounds)
            if "error" in found[converter]:
                notes.append(f"{model.name}, {converter}: {found[converter]['error']}")
        measured.append({"model": model.name, **found})
        rows.append(_row(model.library, model.name, found))
    header = ["model", "written with", "million weights", "bridge", "save, CPU time"]
    header += ["saved_model.pb", "jax.jit", "served, x jax.jit", "jax2tf"]
    _measure.report(
        "Real models with open sizes", header, rows, measured, json_path=options.json, notes=notes
    )


if __name__ == "__main__":
    main()
