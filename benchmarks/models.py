"""Real models with open sizes: what converts, saves and runs, and what it costs, against jax2tf.

Each is converted, saved, loaded and asked in fresh processes. They are those of tests/models.
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

_LONGEST = 110
_SAVES = 2

Save = Callable[[Any, Any, Path], object]
"""Saves a model, and what was built of it, in a folder."""


def _bridge() -> Save:
    import jax2tf_bridge.from_jax  # noqa: F401 - which save imports when it is called
    from tests.models.expected import save_model

    return lambda model, built, folder: save_model(model, built, folder)


def _bridge_for_the_cpu() -> Save:
    import jax2tf_bridge.from_jax  # noqa: F401 - which save imports when it is called
    from tests.models.expected import save_model

    return lambda model, built, folder: save_model(model, built, folder, platforms=["cpu"])


def _jax2tf() -> Save:
    from jax.experimental import jax2tf

    return lambda model, built, folder: _save_with_jax2tf(jax2tf, model, built, folder)


_CONVERTERS: dict[str, Callable[[], Save]] = {
    "bridge": _bridge,
    "bridge, cpu only": _bridge_for_the_cpu,
    "jax2tf": _jax2tf,
}
"""Each imports what it saves with, which is not measured."""


def _save_with_jax2tf(jax2tf: Any, model: Any, built: Any, folder: Path) -> None:
    """As its users write it: weights in variables, and keys as their words."""
    import jax
    import tensorflow as tf

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
    """What came of one model in this process alone: seconds, bytes, ratios; or the error.

    It is called only if there are rounds.
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
    # What a process pays once, whoever saves: the two runtimes start.
    jax.jit(lambda a: a + 1)(np.ones(3, np.float32)).block_until_ready()
    tf.function(lambda a: a + 1, jit_compile=True)(tf.ones(3))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model"
        # Else chance decides where Python looks through all objects, which takes 0.2 s.
        gc.collect()
        start = time.perf_counter(), time.process_time()
        save(model, built, path)
        saved = time.perf_counter() - start[0], time.process_time() - start[1]
        found = {"seconds": saved[0], "cpu_seconds": saved[1]}
        if not rounds:
            return found
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
        **found,
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


def _measured(name: str, saves: int, rounds: int) -> dict[str, dict[str, Any]]:
    """What came of one model, by the converter; saves take turns, and the last one is called."""
    found: dict[str, dict[str, Any]] = {converter: {"saves": []} for converter in _CONVERTERS}
    for i in range(saves):
        is_called = i == saves - 1
        for converter, result in found.items():
            if "error" in result:
                continue
            _measure.progress(f"{name}, {converter}, {i + 1} of {saves}")
            # Platforms make no difference to calls.
            called = rounds if is_called and converter != "bridge, cpu only" else 0
            made = _in_a_fresh_process(converter, name, called)
            result.update(made)
            if "error" not in made:
                result["saves"].append(made["cpu_seconds"])
    return found


def _row(library: str, name: str, found: dict[str, dict[str, Any]]) -> list[str]:
    bridge, other = found["bridge"], found["jax2tf"]
    texts = [name, library]
    if "error" in bridge:
        return [*texts, *["-"] * 7, "FAILS", _served(other)]
    cpu = _measure.Spread.of(bridge["saves"]).median
    texts += [f"{bridge['weights'] / 1e6:.1f}", _measure.seconds_text(cpu)]
    times = {converter: result["saves"] for converter, result in found.items()}
    for converter in ("bridge", "bridge, cpu only"):
        if "error" in other or "error" in found[converter]:
            texts.append("-")
            continue
        ratio = _measure.ratios(times, converter, "jax2tf")
        found[converter]["save, to jax2tf"] = ratio
        texts.append(f"{ratio.median:.2f}")
    sizes = ["-" if "error" in r else f"{r['graph'] / 1e6:.2f} MB" for r in (bridge, other)]
    return [
        *texts,
        *sizes,
        _measure.seconds_text(bridge["jax.jit"]),
        _served(bridge),
        _served(other),
    ]


def _served(result: dict[str, Any]) -> str:
    return "fails" if "error" in result else _measure.Spread(*result["ratio"]).ratio_text()


def main() -> None:
    parser = _measure.parser(__doc__, rounds=9)
    parser.add_argument("--models", nargs="+", help="those alone")
    parser.add_argument("--saves", type=int, default=_SAVES, help="processes that save each")
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
        found = _measured(model.name, options.saves, options.rounds)
        for converter, result in found.items():
            if "error" in result:
                notes.append(f"{model.name}, {converter}: {result['error']}")
        rows.append(_row(model.library, model.name, found))
        measured.append({"model": model.name, **found})
    header = ["model", "written with", "million weights", "save, CPU time", "x jax2tf"]
    header += ["cpu only, x jax2tf", "saved_model.pb", "jax2tf's", "jax.jit"]
    header += ["served, x jax.jit", "jax2tf, x jax.jit"]
    _measure.report(
        "Real models with open sizes", header, rows, measured, json_path=options.json, notes=notes
    )


if __name__ == "__main__":
    main()
