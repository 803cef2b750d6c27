"""A call of a C library that was compiled ahead of time: against jax.jit and LiteRT."""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tensorflow as tf

from benchmarks import _measure, _models
from jax2tf_bridge import Signature, compile_library, load_library, save_litert
from jax2tf_bridge.c_library import CompiledLibrary

_CALLS = 16
"""Calls of a function that are timed together, so that calling from Python costs little."""

_CALLER = r"""
#include <stddef.h>
#include "net.h"
int call(net_handle *handle, const float *x, float *y, int calls) {
  net_inputs inputs = {.x = x};
  net_outputs outputs = {.y = y};
  for (int i = 0; i < calls; ++i)
    if (net_run(handle, &inputs, &outputs) != NET_OK) return 1;
  return 0;
}
"""

_FIRST_ANSWER = r"""
#include <stdio.h>
#include <time.h>
#include "net.h"
static float x[%(inputs)d], y[%(outputs)d];
int main(void) {
  struct timespec start, end;
  clock_gettime(CLOCK_MONOTONIC, &start);
  net_handle *handle;
  net_inputs inputs = {.x = x};
  net_outputs outputs = {.y = y};
  if (net_new(&handle, NULL) != NET_OK || net_run(handle, &inputs, &outputs) != NET_OK) return 1;
  clock_gettime(CLOCK_MONOTONIC, &end);
  printf("%%.9f", end.tv_sec - start.tv_sec + 1e-9 * (end.tv_nsec - start.tv_nsec));
}
"""


@dataclass(frozen=True)
class _Case:
    """A function of (weights, x), and its arguments."""

    apply: Callable[..., Any]
    weights: Mapping[str, Any]
    x: Any


def make_cases() -> dict[str, _Case]:
    """Makes a controller, two MLPs and a conv net."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    def control(w: Any, x: Any) -> Any:
        return x - 0.5 * jax.grad(lambda u: jnp.sum((w["a"] @ u + w["b"]) ** 2))(x)

    def classify(w: Any, x: Any) -> Any:
        return jax.nn.softmax(jax.nn.relu(x @ w["first"]) @ w["second"])

    mlp, conv = _models.mlp(), _models.conv()
    return {
        "controller, 5 x 5": _Case(control, {"a": draw(5, 5), "b": draw(5)}, draw(5)),
        "MLP, 28-64-10": _Case(
            classify, {"first": draw(28, 64), "second": draw(64, 10)}, draw(1, 28)
        ),
        "MLP, 784-512-512-10": _Case(mlp.apply, mlp.weights, mlp.inputs(1)),
        "conv net": _Case(conv.apply, conv.weights, conv.inputs(1)),
    }


def compile_case(folder: Path, case: _Case) -> CompiledLibrary:
    """Compiles a function to a shared library."""

    def net(weights: Any, x: Any) -> Any:
        return {"y": case.apply(weights, x)}

    return compile_library(
        folder / "net_lib",
        Signature(net, args=[case.x]),
        params=dict(case.weights),
        target_cpu="haswell",
        shared=True,
    )


def call_from_c(folder: Path, library: CompiledLibrary, case: _Case) -> Callable[[], Any]:
    """Returns a call that runs the library some times in C."""
    assert library.shared is not None
    (folder / "caller.c").write_text(_CALLER)
    include = ["-I", str(library.path)]
    program = ["gcc", "-O2", "-shared", "-fPIC", *include, str(folder / "caller.c")]
    caller = folder / "caller.so"
    subprocess.run([*program, str(library.shared), "-o", str(caller)], check=True)
    net, shim = ctypes.CDLL(str(library.shared), ctypes.RTLD_GLOBAL), ctypes.CDLL(str(caller))
    handle = ctypes.c_void_p()
    assert net.net_new(ctypes.byref(handle), None) == 0
    x = np.ascontiguousarray(case.x)
    y = np.zeros(jax.eval_shape(case.apply, case.weights, x).shape, np.float32)
    arguments = handle, ctypes.c_void_p(x.ctypes.data), ctypes.c_void_p(y.ctypes.data), _CALLS

    def call() -> Any:
        assert shim.call(*arguments) == 0
        return x is not None and y

    return call


def call_jax(case: _Case) -> Callable[[], Any]:
    """Returns a call that runs the jitted function some times."""
    function, weights = jax.jit(case.apply), jax.device_put(dict(case.weights))

    def call() -> Any:
        for _ in range(_CALLS):
            y = np.asarray(function(weights, case.x))
        return y

    return call


def call_litert(folder: Path, case: _Case) -> Callable[[], Any]:
    """Returns a call that runs LiteRT, with XNNPACK on one thread, some times."""
    net = Signature(lambda weights, x: case.apply(weights, x), args=[case.x])
    model = save_litert(folder / "net.tflite", net, params=dict(case.weights))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = tf.lite.Interpreter(str(model.path), num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], case.x)
    output = interpreter.get_output_details()[0]["index"]

    def call() -> Any:
        for _ in range(_CALLS):
            interpreter.invoke()
        return interpreter.get_tensor(output)

    return call


def call_loaded(library: CompiledLibrary, case: _Case) -> Callable[[], Any]:
    """Returns a call that runs the library some times in Python."""
    assert library.shared is not None
    loaded = load_library(library.shared)

    def call() -> Any:
        for _ in range(_CALLS):
            y = loaded(x=case.x)["y"]
        return y

    return call


def measure_first_answer(
    folder: Path, library: CompiledLibrary, case: _Case, rounds: int
) -> _measure.Spread:
    """Measures the first answer of a new process, from the start of main."""
    sizes = {
        "inputs": case.x.size,
        "outputs": np.prod(jax.eval_shape(case.apply, case.weights, case.x).shape),
    }
    (folder / "first.c").write_text(_FIRST_ANSWER % sizes)
    program = folder / "first"
    files = [str(folder / "first.c"), str(library.shared)]
    command = ["gcc", "-O2", "-I", str(library.path), *files, f"-Wl,-rpath,{library.path}"]
    subprocess.run([*command, "-o", str(program)], check=True)
    times = [
        float(subprocess.run([program], check=True, capture_output=True, text=True).stdout)
        for _ in range(rounds)
    ]
    return _measure.Spread.of(times)


def main() -> None:
    """Measures and prints a table."""
    options = _measure.make_parser(__doc__, rounds=31).parse_args()
    rows, measured = [], []
    for name, case in make_cases().items():
        _measure.print_progress(name)
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            library = compile_case(folder, case)
            assert library.shared is not None
            calls = {
                "C library": call_from_c(folder, library, case),
                "jax.jit": call_jax(case),
                "LiteRT": call_litert(folder, case),
                "load_library": call_loaded(library, case),
            }
            expected = calls["jax.jit"]()
            for call in calls.values():
                np.testing.assert_allclose(call(), expected, rtol=1e-3, atol=1e-5)
            times = _measure.measure_interleaved(calls, rounds=options.rounds)
            first = measure_first_answer(folder, library, case, options.rounds)
            code = library.shared.stat().st_size - library.weights_bytes
        took = {way: _measure.Spread.of([t / _CALLS for t in times[way]]) for way in calls}
        ratios = [_measure.compute_ratios(times, "C library", b) for b in ("jax.jit", "LiteRT")]
        measured.append(
            {
                "model": name,
                "code_bytes": code,
                "first_answer": first,
                **{f"seconds_{way}": spread for way, spread in took.items()},
                **{f"ratio_{b}": r for b, r in zip(("jax.jit", "LiteRT"), ratios, strict=True)},
            }
        )
        texts = [_measure.seconds_text(took[way].median) for way in calls]
        rows.append(
            [
                name,
                texts[0],
                *(ratio.ratio_text() for ratio in ratios),
                texts[-1],
                _measure.seconds_text(first.median),
                f"{code / 1e3:.0f} kB",
            ]
        )
    _measure.report(
        "C libraries, compiled ahead of time",
        ["function", "call in C", "x jax.jit", "x LiteRT", "in Python", "first answer", "code"],
        rows,
        measured,
        json_path=options.json,
        notes=[
            "Batch 1, compiled for haswell. jax.jit and LiteRT (XNNPACK, one thread) are called "
            "from Python. The first answer is that of a new process, from the start of main, with "
            "the library loaded. Code is the shared library without weights."
        ],
    )


if __name__ == "__main__":
    main()
