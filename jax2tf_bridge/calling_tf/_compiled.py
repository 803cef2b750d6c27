"""Compiles TensorFlow functions to StableHLO modules, and makes jax.export.Exported of these."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
import tensorflow as tf
from jax import export as jax_export
from jax.extend import mlir as jax_mlir

from jax2tf_bridge.bytecode import read_main_types, read_summary
from jax2tf_bridge.calling_tf._failures import make_not_compilable_error
from jax2tf_bridge.calling_tf._functions import FlatFunction, FunctionTrace, suspend_tracing
from jax2tf_bridge.calling_tf._values import uses_64_bits
from jax2tf_bridge.errors import PlatformError, ShapeError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import ir, jax_compat, to_exported
from jax2tf_bridge.from_jax.stablehlo import walk_operations
from jax2tf_bridge.portable import Aval, LiftedConstant, Module, PortableFunction, read_tensor_type
from jax2tf_bridge.targets import Target

_CONVENTION = 9
_UPDATING_OPERATION = re.compile(
    r"Assign\w*VariableOp|Resource(?!Gather)\w+|RngReadAndSkip|RngSkip|Stateful(?!Partitioned)\w+"
)


@dataclass(frozen=True)
class CompiledModule:
    """A function compiled to StableHLO for one platform.

    Attributes:
      module: a StableHLO portable artifact that takes the arguments, and then the captures.
      captures: the captures of the graph: handles of variables, and tensors.
      capture_avals: the types of the captures.
      results: the types of the results.
    """

    module: bytes
    captures: tuple[Any, ...]
    capture_avals: tuple[Aval, ...]
    results: tuple[Aval, ...]


def _find_tensorflow_device(platform: str) -> str | None:
    """Returns the TensorFlow device that compiles for a platform; None without one."""
    built = {"cuda": tf.test.is_built_with_cuda, "rocm": tf.test.is_built_with_rocm}
    if platform in built and not built[platform]():
        return None
    kind = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}.get(platform)
    with suspend_tracing():
        devices = tf.config.list_logical_devices(kind) if kind else []
    return devices[0].name if devices else None


def compile_function(
    function: FlatFunction, avals: Sequence[Aval], platform: str
) -> CompiledModule:
    """Compiles the function to StableHLO, for a platform and arguments of these shapes.

    TensorFlow compiles only for devices that it has. Other platforms use the module for the CPU
    if it has no custom calls; all other operations of StableHLO are platform-independent.

    Raises:
      PlatformError: TensorFlow has no such device, and the module has custom calls.
      UnsupportedByTargetError: XLA cannot compile the function; the error names the operation.
    """
    device = _find_tensorflow_device(platform)
    if device is None:
        module = compile_function(function, avals, "cpu")
        calls = sorted(read_summary(module.module).custom_calls)
        if calls:
            raise PlatformError(
                f"The TensorFlow function {function.name} cannot be compiled for {platform}: it "
                f"calls {', '.join(calls)}, which differ by platform, and the installed "
                f"TensorFlow {tf.__version__} has no device of that platform. Embed the graph "
                "(call_tf_graph=True), which TensorFlow compiles where the model runs.",
                reasons={platform: "no device"},
            )
        return module
    return function.get_or_make(
        ("module", *avals, platform, uses_64_bits()),
        lambda: _compile(function.name, function.get_trace(avals), platform, device),
    )


def export_compiled(
    function: FlatFunction, avals: Sequence[Aval], results: Sequence[Aval], platform: str
) -> jax_export.Exported:
    """Makes a jax.export.Exported from the function, with the current values of its variables.

    Args:
      function: the function.
      avals: the avals of its arguments.
      results: the results that the caller expects.
      platform: the platform to compile for.

    Raises:
      PlatformError, UnsupportedByTargetError: as `compile_function`.
    """
    module = compile_function(function, avals, platform)
    if module.results != tuple(results):
        raise ShapeError(
            f"The TensorFlow function {function.name} returns "
            f"{', '.join(map(str, module.results))} when it is compiled, but output_shape_dtype "
            f"declares {', '.join(map(str, results))}. Declare the results that it returns."
        )
    constants = tuple(map(_read_capture, module.captures, module.capture_avals))
    version = jax_compat.get_stablehlo_version()
    portable = PortableFunction.over_leaves(
        function.name,
        Module(module.module, version, _CONVENTION, tuple(range(len(avals))), (platform,)),
        avals,
        results,
        target=Target(f"JAX {jax.__version__}", (version,), _CONVENTION),
        producer=f"TensorFlow {tf.__version__}",
    )
    return to_exported(replace(portable, lifted_constants=constants))


def _compile(name: str, trace: FunctionTrace, platform: str, device: str) -> CompiledModule:
    check_no_updates(name, trace)
    try:
        with suspend_tracing():
            # HLO has a stable format; TensorFlow's StableHLO text has none.
            function = tf.function(trace, autograph=False, jit_compile=True)
            captures = tuple(function.get_concrete_function(*trace.specs).captured_inputs)
            get_ir = function.experimental_get_compiler_ir(*trace.specs)
            if platform == "cpu":
                hlo = get_ir(stage="hlo_serialized", platform_name="CPU")
            else:
                # With platform_name, get_compiler_ir does not accept captured variables.
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "device_name is being deprecated")
                    hlo = get_ir(stage="hlo_serialized", device_name=device)
        stablehlo = jax_mlir.hlo_to_stablehlo(hlo)
    except Exception as e:  # the type depends on the failure
        raise make_not_compilable_error(name, e) from e
    module = _serialize_portable(stablehlo)
    ins, outs = read_main_types(module)
    if any("?" in text.partition(",")[0] for text in outs):
        raise _make_dynamic_result_error(name, trace)
    capture_avals = tuple(_parse_type(text) for text in ins[len(trace.specs) :])
    return CompiledModule(module, captures, capture_avals, tuple(map(_parse_type, outs)))


def check_no_updates(name: str, trace: FunctionTrace) -> None:
    """Rejects functions that change variables.

    Raises:
      UnsupportedByTargetError: the function changes a variable.
    """
    updates = [
        kind for kind in trace.list_stateful_operations() if _UPDATING_OPERATION.fullmatch(kind)
    ]
    if updates:
        raise UnsupportedByTargetError(
            f"The TensorFlow function {name} changes a tf.Variable ({updates[0]}), which a JAX "
            "program cannot. Return the new value, and assign it outside; or call the function "
            "outside of jax.jit, scan, cond, while_loop and convert, where it runs operation by "
            "operation.",
            operation=updates[0],
            source=None,
        )


def _serialize_portable(bytecode: bytes) -> bytes:
    with jax_compat.make_ir_context():
        module = ir.Module.parse(bytecode)
        for op in [op for op in walk_operations(module.operation) if op.name == "mhlo.copy"]:
            # A copy is an identity, which StableHLO does not have.
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        return jax_compat.serialize_module(module)


def _parse_type(text: str) -> Aval:
    parts = read_tensor_type(text)
    assert parts is not None, text
    sizes, dtype = parts
    return Aval(tuple(map(int, sizes)), dtype)


def _read_capture(value: Any, aval: Aval) -> LiftedConstant:
    with suspend_tracing():
        if value.dtype == tf.resource:
            value = tf.raw_ops.ReadVariableOp(resource=value, dtype=tf.as_dtype(aval.dtype))
        data = np.ascontiguousarray(value.numpy()).tobytes()
    return LiftedConstant(aval, hashlib.sha256(data).hexdigest(), data=data)


def _make_dynamic_result_error(name: str, trace: FunctionTrace) -> UnsupportedByTargetError:
    operation = _find_unknown_size(trace)
    return UnsupportedByTargetError(
        f"The TensorFlow function {name} returns a result whose size depends on the values of its "
        f"arguments, by the operation {operation}, but sizes in a JAX program are fixed. Return a "
        "result of fixed size, for instance padded (tf.pad, tf.where with three arguments); or "
        "call the function outside of jax.jit, scan, cond, while_loop and convert.",
        operation=operation,
        source=None,
    )


def _find_unknown_size(trace: FunctionTrace) -> str:
    for op in trace.concrete.graph.get_operations():
        unknown = any(not t.shape.is_fully_defined() for t in op.outputs)
        if unknown and all(t.shape.is_fully_defined() for t in op.inputs):
            return str(op.type)
    return "that computes it"
