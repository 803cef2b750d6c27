"""Runs a model in one runtime, for benchmarks.ahead_of_time; runs in that runtime's environment.

python _runner.py RUNTIME MODEL X Y

X and Y are files of float32: the input, and the answer to write. Prints a line after the first
answer, then for each number on the standard input the seconds that so many calls take. Imports
nothing that the environment of a runtime may lack.
"""

from __future__ import annotations

import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def run_jax(model: Path, x: Any) -> Callable[[], Any]:
    """Runs what jax.export wrote, by jax.jit."""
    jax = importlib.import_module("jax")
    export = importlib.import_module("jax.export")
    function = jax.jit(export.deserialize(bytearray(model.read_bytes())).call)
    return lambda: np.asarray(function(x))


def run_library(model: Path, x: Any) -> Callable[[], Any]:
    """Runs a C library, by load_library."""
    library = importlib.import_module("jax2tf_bridge").load_library(model)
    return lambda: library(x=x)["y"]


def run_litert(model: Path, x: Any) -> Callable[[], Any]:
    """Runs a LiteRT model on one thread, with XNNPACK."""
    runtime = importlib.import_module("ai_edge_litert.interpreter")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interpreter = runtime.Interpreter(str(model), num_threads=1)
    interpreter.allocate_tensors()
    (entry,), (result,) = interpreter.get_input_details(), interpreter.get_output_details()

    def call() -> Any:
        interpreter.set_tensor(entry["index"], x)
        interpreter.invoke()
        return interpreter.get_tensor(result["index"])

    return call


def run_onnx(model: Path, x: Any) -> Callable[[], Any]:
    """Runs an ONNX model on one thread of ONNX Runtime."""
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (name,) = (entry.name for entry in session.get_inputs())
    return lambda: session.run(None, {name: x})[0]


_RUNTIMES = {"jax": run_jax, "library": run_library, "litert": run_litert, "onnx": run_onnx}


def main(runtime: str, model: str, x: str, y: str) -> None:
    """Answers once, and then as often as the standard input says."""
    call = _RUNTIMES[runtime](Path(model), np.load(x))
    np.asarray(call(), np.float32).tofile(y)
    print("ready", flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        for _ in range(int(line)):
            call()
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
