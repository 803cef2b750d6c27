"""C libraries, compiled ahead of time: against jax.jit, a SavedModel in C++, LiteRT and ONNX."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jaxlib
import numpy as np
import tensorflow as tf

from benchmarks import _measure, _models
from jax2tf_bridge import Signature, Target, compile_library, save, save_litert
from jax2tf_bridge.c_library import CompiledLibrary
from jax2tf_bridge.saved_model import read_serving_graph
from scripts._env import ROOT
from tests.consumers.cpp_programs import LINKER

_ENVIRONMENTS = ROOT / ".venvs" / "consumers"
_SECONDS_A_TURN = 0.02
_STARTS = 5
"""Processes of each way that are started for the first answer."""

_MAIN = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
%(include)s
static _Alignas(64) float x[%(inputs)d], y[%(outputs)d];
%(code)s
static int fail(const char *text) {
  fprintf(stderr, "%%s\n", text);
  return 1;
}
int main(int count, char **files) {
  FILE *file = fopen(files[2], "rb");
  if (count != 4 || file == NULL || fread(x, sizeof *x, %(inputs)d, file) != %(inputs)d) return 1;
  fclose(file);
  const char *problem = open_model(files[1]);
  if (problem || (problem = call())) return fail(problem);
  file = fopen(files[3], "wb");
  if (file == NULL || fwrite(y, sizeof *y, %(outputs)d, file) != %(outputs)d) return 1;
  fclose(file);
  printf("ready\n");
  fflush(stdout);
  for (int calls; scanf("%%d", &calls) == 1;) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    while (calls-- > 0)
      if ((problem = call())) return fail(problem);
    clock_gettime(CLOCK_MONOTONIC, &end);
    printf("%%.9f\n", (double)(end.tv_sec - start.tv_sec) + 1e-9 * (end.tv_nsec - start.tv_nsec));
    fflush(stdout);
  }
}
"""
"""A program that runs a model as benchmarks/_runner.py does: PROGRAM MODEL X Y."""

_LIBRARY = r"""
static net_handle *handle;
static const char *open_model(const char *model) {
  (void)model;
  return net_new(&handle, NULL) == NET_OK ? NULL : net_message(handle);
}
static const char *call(void) {
  net_inputs inputs = {.x = x};
  net_outputs outputs = {.y = y};
  return net_run(handle, &inputs, &outputs) == NET_OK ? NULL : net_message(handle);
}
"""

_SAVED_MODEL = r"""
static TF_Status *status;
static TF_Session *session;
static TF_Output entry, result;
static const char *open_model(const char *model) {
  status = TF_NewStatus();
  TF_Graph *graph = TF_NewGraph();
  const char *tags[] = {"serve"};
  session = TF_LoadSessionFromSavedModel(TF_NewSessionOptions(), NULL, model, tags, 1, graph, NULL,
                                         status);
  if (TF_GetCode(status) != TF_OK) return TF_Message(status);
  entry = (TF_Output){TF_GraphOperationByName(graph, "%(entry)s"), %(entry_index)d};
  result = (TF_Output){TF_GraphOperationByName(graph, "%(result)s"), %(result_index)d};
  return NULL;
}
static void keep(void *data, size_t size, void *argument) {
  (void)data, (void)size, (void)argument;
}
static const char *call(void) {
  static const int64_t sizes[] = {%(sizes)s};
  TF_Tensor *in = TF_NewTensor(TF_FLOAT, sizes, %(rank)d, x, sizeof x, keep, NULL), *out = NULL;
  TF_SessionRun(session, NULL, &entry, &in, 1, &result, &out, 1, NULL, 0, NULL, status);
  TF_DeleteTensor(in);
  if (TF_GetCode(status) != TF_OK) return TF_Message(status);
  memcpy(y, TF_TensorData(out), sizeof y);
  TF_DeleteTensor(out);
  return NULL;
}
"""


@dataclass(frozen=True)
class _Case:
    """A function of (weights, x), and its arguments."""

    apply: Callable[..., Any]
    weights: Mapping[str, Any]
    x: Any

    def sign(self) -> Signature:
        """Returns the function as a signature."""

        def net(weights: Any, x: Any) -> Any:
            return {"y": self.apply(weights, x)}

        return Signature(net, args=[self.x])

    def answer(self) -> Any:
        """Returns what jax.jit gives."""
        return np.asarray(jax.jit(self.apply)(dict(self.weights), self.x))


def make_cases() -> dict[str, _Case]:
    """Makes a controller, two MLPs, a conv net and a transformer."""
    rng = np.random.default_rng(0)

    def draw(*shape: int) -> Any:
        return rng.normal(0, 0.1, shape).astype(np.float32)

    def control(w: Any, x: Any) -> Any:
        return x - 0.5 * jax.grad(lambda u: jnp.sum((w["a"] @ u + w["b"]) ** 2))(x)

    def classify(w: Any, x: Any) -> Any:
        return jax.nn.softmax(jax.nn.relu(x @ w["first"]) @ w["second"])

    mlp, conv, transformer = _models.mlp(), _models.conv(), _models.transformer()
    return {
        "controller, 5 x 5": _Case(control, {"a": draw(5, 5), "b": draw(5)}, draw(5)),
        "MLP, 28-64-10": _Case(
            classify, {"first": draw(28, 64), "second": draw(64, 10)}, draw(1, 28)
        ),
        "MLP, 784-512-512-10": _Case(mlp.apply, mlp.weights, mlp.inputs(1)),
        "conv net": _Case(conv.apply, conv.weights, conv.inputs(1)),
        "transformer": _Case(transformer.apply, transformer.weights, transformer.inputs(1)),
    }


def compile_case(folder: Path, case: _Case) -> CompiledLibrary:
    """Compiles a function to a shared library."""
    return compile_library(
        folder / "net_lib",
        case.sign(),
        params=dict(case.weights),
        target_cpu="haswell",
        shared=True,
    )


@dataclass(frozen=True)
class _Way:
    """A process that runs a function.

    Attributes:
      command: its words, without the files of the input and the answer.
      size: bytes of the program, the runtime's libraries and the model.
    """

    command: Sequence[str | Path]
    size: int


def _measure_size(*paths: Path) -> int:
    files = [f for path in paths for f in (path.rglob("*") if path.is_dir() else [path])]
    return sum(f.stat().st_size for f in files if f.is_file() and f.suffix not in (".pyc", ".h"))


def _build(
    folder: Path, name: str, case: _Case, include: str, code: str, words: Sequence[str]
) -> Path:
    """Builds a program in C that runs the function."""
    source, program = folder / f"{name}.c", folder / name
    values = {"inputs": case.x.size, "outputs": case.answer().size}
    source.write_text(_MAIN % {**values, "include": include, "code": code})
    subprocess.run(["gcc", "-O2", str(source), *words, "-o", str(program)], check=True)
    return program


def _find_package(environment: str, name: str) -> Path:
    (package,) = (_ENVIRONMENTS / environment).glob(f"lib/python3*/site-packages/{name}")
    return package


def make_ways(folder: Path, case: _Case) -> dict[str, _Way]:
    """Writes the function for each runtime."""
    library = compile_case(folder, case)
    assert library.shared is not None
    words = ["-I", str(library.path), str(library.shared), f"-Wl,-rpath,{library.path}"]
    in_c = _build(folder, "in_c", case, '#include "net.h"', _LIBRARY, words)

    save(folder / "model", case.sign(), params=dict(case.weights), warm_up=False, vjp_order=0)
    tensorflow = Path(tf.sysconfig.get_lib())
    files = [tensorflow / f"libtensorflow_{part}.so.2" for part in ("cc", "framework")]
    links = [f"-L{tensorflow}", *LINKER, *(f"-l:{file.name}" for file in files)]
    signature = read_serving_graph(folder / "model").signatures["serving_default"]
    entry, result = (
        side[name].tensor.partition(":")
        for side, name in ((signature.inputs, "x"), (signature.outputs, "y"))
    )
    code = _SAVED_MODEL % {
        **{"entry": entry[0], "entry_index": int(entry[2])},
        **{"result": result[0], "result_index": int(result[2])},
        **{"sizes": ", ".join(map(str, case.x.shape)), "rank": case.x.ndim},
    }
    include = "#include <string.h>\n#include <tensorflow/c/c_api.h>"
    words = [f"-I{tensorflow / 'include'}", *links, f"-Wl,-rpath,{tensorflow}", "-lpthread"]
    in_tensorflow = _build(folder, "in_tensorflow", case, include, code, words)

    exported = jax.export.export(jax.jit(lambda x: case.apply(dict(case.weights), x)))(case.x)
    (folder / "net.jax").write_bytes(exported.serialize())
    save_litert(folder / "net.tflite", case.sign(), params=dict(case.weights))
    converters = Target.converters()
    save(folder / "plain", case.sign(), params=dict(case.weights), target=converters, vjp_order=0)
    onnx_python = str(_ENVIRONMENTS / "onnx" / "bin" / "python")
    convert = [onnx_python, "-m", "tf2onnx.convert", "--saved-model", str(folder / "plain")]
    convert += ["--output", str(folder / "net.onnx"), "--opset", "18"]
    subprocess.run(convert, check=True, capture_output=True)
    litert = _find_package("litert", "ai_edge_litert")
    onnx = _find_package("onnx", "onnxruntime")
    parts: dict[str, tuple[str, Path, list[Path]]] = {
        "jax": (sys.executable, folder / "net.jax", [Path(jaxlib.__file__).parent]),
        "litert": (
            str(_ENVIRONMENTS / "litert" / "bin" / "python"),
            folder / "net.tflite",
            [*litert.glob("_pywrap_litert_interpreter*.so"), *litert.glob("libpywrap*common.so")],
        ),
        "onnx": (
            onnx_python,
            folder / "net.onnx",
            [*onnx.glob("capi/onnxruntime_pybind11_state*.so")],
        ),
        "library": (sys.executable, library.shared, []),
    }
    runner = Path(__file__).with_name("_runner.py")
    ways = {
        runtime: _Way([python, runner, runtime, file], _measure_size(file, *libraries))
        for runtime, (python, file, libraries) in parts.items()
    }
    model = folder / "model"
    return {
        "C library": _Way([in_c, library.shared], _measure_size(in_c, library.shared)),
        "C library in Python": ways["library"],
        "jax.jit": ways["jax"],
        "SavedModel in C++": _Way(
            [in_tensorflow, model], _measure_size(in_tensorflow, model, *files)
        ),
        "LiteRT": ways["litert"],
        "ONNX Runtime": ways["onnx"],
    }


class _Runner:
    """A process that runs a function as often as it is told to."""

    def __init__(self, folder: Path, way: _Way, expected: Any) -> None:
        answer = folder / "y.bin"
        is_python = Path(way.command[0]).name.startswith("python")
        x = folder / ("x.npy" if is_python else "x.bin")
        words = [str(word) for word in (*way.command, x, answer)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
        start = time.perf_counter()
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        assert self._read() == "ready", words
        self.first_answer = time.perf_counter() - start
        np.testing.assert_allclose(
            np.fromfile(answer, np.float32).reshape(expected.shape), expected, 1e-3, 1e-4
        )

    def _read(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def run(self, calls: int) -> float:
        """Returns the seconds of one of so many calls."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{calls}\n")
        self._process.stdin.flush()
        return float(self._read()) / calls

    def end(self) -> int:
        """Ends the process, and returns the bytes of memory that it had at most."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmHWM:"))
        self._process.communicate()
        return int(line.split()[1]) * 1024


def measure_calls(runners: Mapping[str, _Runner], rounds: int) -> dict[str, list[float]]:
    """Measures calls in turns, in another order each round: one figure per round."""
    counts = {}
    for name, runner in runners.items():
        runner.run(3)
        counts[name] = max(1, int(_SECONDS_A_TURN / max(runner.run(3), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in runners}
    order = list(runners)
    for number in range(rounds):
        random.Random(number).shuffle(order)
        for name in order:
            times[name].append(runners[name].run(counts[name]))
    return times


def measure_case(name: str, case: _Case, rounds: int) -> list[dict[str, Any]]:
    """Measures a function in each runtime."""
    expected = case.answer()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        np.save(folder / "x.npy", case.x)
        np.ascontiguousarray(case.x).tofile(folder / "x.bin")
        ways = make_ways(folder, case)
        firsts: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(_STARTS - 1):
            for way, command in ways.items():
                runner = _Runner(folder, command, expected)
                firsts[way].append(runner.first_answer)
                runner.end()
        runners = {way: _Runner(folder, command, expected) for way, command in ways.items()}
        for way, runner in runners.items():
            firsts[way].append(runner.first_answer)
        times = measure_calls(runners, rounds)
        memory = {way: runner.end() for way, runner in runners.items()}
    return [
        {
            "model": name,
            "way": way,
            "seconds": _measure.Spread.of(times[way]),
            "ratio": _measure.compute_ratios(times, "C library", way),
            "first_answer": _measure.Spread.of(firsts[way]),
            "program_bytes": ways[way].size,
            "memory_bytes": memory[way],
        }
        for way in ways
    ]


def _format_ratio(ratio: _measure.Spread) -> str:
    return f"{ratio.median:.2g} ({ratio.low:.2g}-{ratio.high:.2g})"


def _format_bytes(size: int) -> str:
    return f"{size / 1e6:.3g} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"


def main() -> None:
    """Measures and prints a table."""
    options = _measure.make_parser(__doc__, rounds=31).parse_args()
    if hasattr(os, "sched_setaffinity"):  # each runtime has one core, whatever its threads
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    measured = []
    for name, case in make_cases().items():
        _measure.print_progress(name)
        measured += measure_case(name, case, options.rounds)
    rows = [
        [
            row["model"],
            row["way"],
            _measure.seconds_text(row["seconds"].median),
            "" if row["way"] == "C library" else _format_ratio(row["ratio"]),
            _measure.seconds_text(row["first_answer"].median),
            _format_bytes(row["program_bytes"]),
            _format_bytes(row["memory_bytes"]),
        ]
        for row in measured
    ]
    _measure.report(
        "C libraries, compiled ahead of time",
        ["function", "way", "call", "C library / this", "first answer", "program", "memory"],
        rows,
        measured,
        json_path=options.json,
        notes=[
            "Batch 1, compiled for haswell; each way is a process on the same core. The C library "
            "and the SavedModel are called from C, the others from Python. The first answer is "
            "counted from the start of the process, with imports. Program is its libraries and the "
            "model, without Python. Memory is the most that the process had."
        ],
    )


if __name__ == "__main__":
    main()
