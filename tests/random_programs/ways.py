"""The ways on which a program is run: jax.jit, and every kind of file that the bridge writes."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import ml_dtypes
import numpy as np
import onnxruntime
import tensorflow as tf
from jax import export as jax_export

from jax2tf_bridge import (
    Signature,
    Target,
    compile_library,
    export,
    load_library,
    save_litert,
    save_onnx,
    save_tfjs,
    to_tf,
)
from tests.litert.running import interpreter
from tests.random_programs.program import Program
from tests.random_programs.values import Array

Run = Callable[[Sequence[Array]], list[Array]]
"""Takes the arguments of a call, and returns the results."""


def in_jax(program: Program) -> Run:
    """Compiles a program by jax.jit."""
    function = jax.jit(program.function())

    def run(args: Sequence[Array]) -> list[Array]:
        with jax.enable_x64(program.x64):
            return [np.asarray(result) for result in function(*args)]

    return run


def in_jax_with_open_sizes(program: Program) -> Run:
    """Exports a program by jax.export, with symbolic sizes."""
    with jax.enable_x64(program.x64):
        specs = jax_export.symbolic_args_specs(
            program.arguments(0), program.polymorphic_shapes(), scope=jax_export.SymbolicScope()
        )
        exported = jax_export.export(jax.jit(program.function()), platforms=["cpu"])(*specs)

    def run(args: Sequence[Array]) -> list[Array]:
        with jax.enable_x64(program.x64):
            return [np.asarray(result) for result in exported.call(*args)]

    return run


def in_xla(program: Program) -> Run:
    """Makes the XlaCallModule of a program."""
    portable = _export(program, Target.widest())
    function = to_tf(portable, with_gradient=False)
    return lambda args: [result.numpy() for result in function(*args)]


def in_operations(program: Program) -> Run:
    """Makes a graph of TensorFlow's own operations, with open sizes; its optimizer sees it."""
    portable = _export(program, Target.widest(xla=False))
    function = to_tf(portable, with_gradient=False)
    specs = [
        tf.TensorSpec([s if isinstance(s, int) else None for s in i.shape], i.dtype)
        for i in program.inputs
    ]
    traced = tf.function(function, input_signature=specs, autograph=False)
    concrete = traced.get_concrete_function()

    def run(args: Sequence[Array]) -> list[Array]:
        results = concrete(*(tf.constant(arg) for arg in args))
        return [result.numpy() for result in results]

    return run


def in_litert(program: Program) -> Run:
    """Makes a LiteRT model, and loads it into TensorFlow's interpreter."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.tflite")
        with jax.enable_x64(program.x64):
            # The results are compared with JAX's here.
            model = save_litert(file, _signature(program), verify=False)
        loaded = interpreter(file)
    runner = loaded.get_signature_runner("serving_default")
    names = list(model.signatures["serving_default"].outputs)
    taken = set(runner.get_input_details())

    def run(args: Sequence[Array]) -> list[Array]:
        feeds = {
            i.name: arg for i, arg in zip(program.inputs, args, strict=True) if i.name in taken
        }
        results = runner(**feeds)
        return [np.asarray(results[name]) for name in names]

    return run


def in_onnx(program: Program) -> Run:
    """Makes an ONNX model with open sizes, and loads it into ONNX Runtime."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "program.onnx")
        with jax.enable_x64(program.x64):
            # The results are compared with JAX's here.
            model = save_onnx(file, _signature(program), platforms=["cpu"], verify=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    names = [*model.signatures["serving_default"].outputs]
    dtypes = _result_dtypes(program)

    def run(args: Sequence[Array]) -> list[Array]:
        feeds = {i.name: _to_onnx(arg) for i, arg in zip(program.inputs, args, strict=True)}
        return [*map(_from_onnx, session.run(names, feeds), dtypes)]

    return run


def _to_onnx(array: Array) -> Array:
    if array.dtype.kind == "c":
        return np.stack([array.real, array.imag], -1)
    return array.astype(np.float32) if array.dtype == ml_dtypes.bfloat16 else array


def _from_onnx(array: Array, dtype: np.dtype[Any]) -> Array:
    """Returns an output in the dtype that it has in JAX."""
    if dtype.kind == "c":
        result = np.empty(array.shape[:-1], dtype)
        result.real, result.imag = array[..., 0], array[..., 1]
        return result
    return array.astype(dtype) if dtype == ml_dtypes.bfloat16 else array


_BACKENDS = ("wasm", "cpu")
"""The second is for what the first lacks, such as products of integers (docs/browser.md)."""


def in_tensorflow_js(program: Program) -> Run:
    """Makes a graph model with open sizes, and runs it in TensorFlow.js on Node's wasm backend."""
    from tests.consumers.node_addon import call  # of a checkout

    folder = tempfile.TemporaryDirectory()
    file = Path(folder.name, "model", "model.json")
    with jax.enable_x64(program.x64):
        model = save_tfjs(file.parent, _signature(program))
    names = [*model.signatures["serving_default"].outputs]
    dtypes = _result_dtypes(program)

    def run(args: Sequence[Array]) -> list[Array]:
        feeds = {
            i.name: _to_tensorflow_js(arg) for i, arg in zip(program.inputs, args, strict=True)
        }
        answer = call(find_node(), file, [feeds], Path(folder.name), backends=_BACKENDS)
        return [answer.results[0][n].astype(d) for n, d in zip(names, dtypes, strict=True)]

    return run


def _to_tensorflow_js(array: Array) -> Array:
    if array.dtype == np.uint32 or array.dtype == np.bool_:
        return array
    is_float = array.dtype.kind in "fV"
    return array.astype(np.float32 if is_float else np.int32)


@functools.cache
def find_node() -> Any:
    """Returns Node with TensorFlow.js; see `node_for_browsers`."""
    from tests.consumers.harness import Harness
    from tests.consumers.node_addon import node_for_browsers

    return node_for_browsers(Harness(Path(tempfile.gettempdir())))


def in_c(program: Program) -> Run:
    """Compiles a C library for the sizes of each call, and loads it."""

    def run(args: Sequence[Array]) -> list[Array]:
        fixed = Signature(program.function(), args=args)
        with tempfile.TemporaryDirectory() as folder, jax.enable_x64(program.x64):
            library = compile_library(Path(folder, "program"), fixed, shared=True)
            loaded = load_library(library.path / "program.so")
            taken = loaded.signatures["serving_default"].inputs
            feeds = {i.name: a for i, a in zip(program.inputs, args, strict=True)}
            return [*loaded(**{name: feeds[name] for name in taken}).values()]

    return run


WAYS: dict[str, Callable[[Program], Run]] = {
    "xla": in_xla,
    "operations": in_operations,
    "litert": in_litert,
    "onnx": in_onnx,
    "tfjs": in_tensorflow_js,
    "c": in_c,
}
"""By the names of the command line."""


def _export(program: Program, target: Target) -> Any:
    with jax.enable_x64(program.x64):
        return export(
            program.function(),
            polymorphic_shapes=program.polymorphic_shapes(),
            platforms=["cpu"],
            target=target,
        )(*program.arguments(0))


def _signature(program: Program) -> Signature:
    return Signature(
        program.function(),
        args=program.arguments(0),
        polymorphic_shapes=program.polymorphic_shapes(),
    )


def _result_dtypes(program: Program) -> list[np.dtype[Any]]:
    with jax.enable_x64(program.x64):
        results = jax.eval_shape(program.function(), *program.arguments(0))
    return [result.dtype for result in results]
