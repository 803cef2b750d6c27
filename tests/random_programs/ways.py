"""The ways on which a program is run: jax.jit, three into TensorFlow, and ONNX Runtime."""

from __future__ import annotations

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

from jax2tf_bridge import Signature, Target, export, save_litert, save_onnx, to_tf
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
            signature = Signature(
                program.function(),
                args=program.arguments(0),
                polymorphic_shapes=program.polymorphic_shapes(),
            )
            # The results are compared with JAX's here.
            model = save_litert(file, signature, verify=False)
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
            signature = Signature(
                program.function(),
                args=program.arguments(0),
                polymorphic_shapes=program.polymorphic_shapes(),
            )
            # The results are compared with JAX's here.
            model = save_onnx(file, signature, platforms=["cpu"], verify=False)
            results = jax.eval_shape(program.function(), *program.arguments(0))
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(str(file), options, ["CPUExecutionProvider"])
    names = [*model.signatures["serving_default"].outputs]
    dtypes = [result.dtype for result in results]

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


WAYS: dict[str, Callable[[Program], Run]] = {
    "xla": in_xla,
    "operations": in_operations,
    "litert": in_litert,
    "onnx": in_onnx,
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
