"""Compiles TensorFlow functions to StableHLO, and that to functions that JAX lowers."""

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

from jax2tf_bridge.call_tf._failures import not_compilable
from jax2tf_bridge.call_tf._functions import FlatFunction, Traced, in_eager_mode
from jax2tf_bridge.call_tf._values import uses_64_bits
from jax2tf_bridge.errors import PlatformError, ShapeError, UnsupportedByTargetError
from jax2tf_bridge.from_jax import _jax_compat, to_exported
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import below
from jax2tf_bridge.portable._aval import Aval, LiftedConstant
from jax2tf_bridge.portable._call_types import read_tensor_type
from jax2tf_bridge.portable._module import Module
from jax2tf_bridge.portable._portable_function import PortableFunction
from jax2tf_bridge.portable._target import Target
from jax2tf_bridge.portable.bytecode import read_main_types, read_module

_CONVENTION = 9
_UPDATES = re.compile(
    r"Assign\w*VariableOp|Resource(?!Gather)\w+|RngReadAndSkip|RngSkip|Stateful(?!Partitioned)\w+"
)


@dataclass(frozen=True)
class CompiledModule:
    """A function as XLA compiled it for one platform.

    Attributes:
      module: StableHLO as a portable artifact; it takes the arguments, and then the captures.
      captured: what the graph captured: handles of variables, and tensors.
      captures, results: the types of these and of the results.
    """

    module: bytes
    captured: tuple[Any, ...]
    captures: tuple[Aval, ...]
    results: tuple[Aval, ...]


def tensorflow_device(platform: str) -> str | None:
    """Finds TensorFlow's device that compiles for a platform; None if it has none."""
    built = {"cuda": tf.test.is_built_with_cuda, "rocm": tf.test.is_built_with_rocm}
    if platform in built and not built[platform]():
        return None
    kind = {"cpu": "CPU", "cuda": "GPU", "rocm": "GPU", "tpu": "TPU"}.get(platform)
    with in_eager_mode():
        devices = tf.config.list_logical_devices(kind) if kind else []
    return devices[0].name if devices else None


def compiled(function: FlatFunction, avals: Sequence[Aval], platform: str) -> CompiledModule:
    """Compiles the function to StableHLO, for a platform and arguments of these shapes.

    TensorFlow compiles for devices that it has. For another platform, what it makes of the function
    for the CPU is taken, unless custom calls are in it: the rest of StableHLO is of no platform.

    Raises:
      PlatformError: TensorFlow has no such device, and custom calls are in the function.
      UnsupportedByTargetError: XLA cannot compile the function; it names the operation.
    """
    device = tensorflow_device(platform)
    if device is None:
        return _for_other_platform(function.name, compiled(function, avals, "cpu"), platform)
    key = (*avals, platform, uses_64_bits())
    made: CompiledModule = function.module(
        key, lambda: _compile(function.name, function.traced(avals), platform, device)
    )
    return made


def exported(
    function: FlatFunction, avals: Sequence[Aval], results: Sequence[Aval], platform: str
) -> jax_export.Exported:
    """Exports the function as jax.export does, with the values that its variables have now.

    Args:
      function: to be called.
      avals: of its arguments.
      results: what the caller takes its results for.
      platform: that it is compiled for.

    Raises:
      PlatformError, UnsupportedByTargetError: as `compiled`.
    """
    made = compiled(function, avals, platform)
    if made.results != tuple(results):
        raise ShapeError(
            f"The TensorFlow function {function.name} gives {', '.join(map(str, made.results))} "
            f"when it is compiled, and output_shape_dtype declares {', '.join(map(str, results))}."
        )
    constants = tuple(map(_constant, made.captured, made.captures))
    version = _jax_compat.current_stablehlo_version()
    portable = PortableFunction.over_leaves(
        function.name,
        Module(made.module, version, _CONVENTION, tuple(range(len(avals))), (platform,)),
        avals,
        results,
        target=Target(f"JAX {jax.__version__}", (version,), _CONVENTION),
        producer=f"TensorFlow {tf.__version__}",
    )
    return to_exported(replace(portable, lifted_constants=constants))


def _for_other_platform(name: str, made: CompiledModule, platform: str) -> CompiledModule:
    """Returns what was compiled for the CPU, if it means the same on another platform.

    Raises:
      PlatformError: it has custom calls.
    """
    calls = sorted(read_module(made.module).custom_calls)
    if not calls:
        return made
    raise PlatformError(
        f"The TensorFlow function {name} cannot be compiled for {platform}: it calls "
        f"{', '.join(calls)}, which each platform has in its own way, and the installed TensorFlow "
        f"{tf.__version__} has no device of that platform. Carry the graph along "
        "(call_tf_graph=True), which TensorFlow compiles where the model runs",
        reasons={platform: "no device"},
    )


def _compile(name: str, traced: Traced, platform: str, device: str) -> CompiledModule:
    refuse_updates(name, traced)
    try:
        with in_eager_mode():
            # As HLO, whose format is stable: the StableHLO that TensorFlow prints is not.
            function = tf.function(traced, autograph=False, jit_compile=True)
            captured = tuple(function.get_concrete_function(*traced.specs).captured_inputs)
            make = function.experimental_get_compiler_ir(*traced.specs)
            if platform == "cpu":
                hlo = make(stage="hlo_serialized", platform_name="CPU")
            else:
                # By the name of the platform it takes no variables.
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "device_name is being deprecated")
                    hlo = make(stage="hlo_serialized", device_name=device)
        stablehlo = jax_mlir.hlo_to_stablehlo(hlo)
    except Exception as e:  # of types that differ between failures
        raise not_compilable(name, e) from e
    module = _portable(stablehlo)
    ins, outs = read_main_types(module)
    if any("?" in text.partition(",")[0] for text in outs):
        raise _dynamic_result(name, traced)
    captures = tuple(_aval(text) for text in ins[len(traced.specs) :])
    return CompiledModule(module, captured, captures, tuple(map(_aval, outs)))


def refuse_updates(name: str, traced: Traced) -> None:
    """Raises if the function changes variables.

    Raises:
      UnsupportedByTargetError: it does.
    """
    updates = [kind for kind in traced.stateful_operations() if _UPDATES.fullmatch(kind)]
    if updates:
        raise _updates_variables(name, updates[0])


def _portable(bytecode: bytes) -> bytes:
    with _jax_compat.make_ir_context():
        module = ir.Module.parse(bytecode)
        for op in [op for op in below(module.operation) if op.name == "mhlo.copy"]:
            # XLA's own, of no meaning between values; StableHLO has none.
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        version = ".".join(map(str, _jax_compat.current_stablehlo_version()))
        return _jax_compat.serialize_module(module, version)


def _aval(text: str) -> Aval:
    found = read_tensor_type(text)
    assert found is not None, text
    sizes, dtype = found
    return Aval(tuple(map(int, sizes)), dtype)


def _constant(captured: Any, aval: Aval) -> LiftedConstant:
    """Reads a captured variable or tensor, as it is now."""
    with in_eager_mode():
        value = captured
        if captured.dtype == tf.resource:
            value = tf.raw_ops.ReadVariableOp(resource=captured, dtype=tf.as_dtype(aval.dtype))
        data = np.ascontiguousarray(value.numpy()).tobytes()
    return LiftedConstant(aval, hashlib.sha256(data).hexdigest(), data=data)


def _updates_variables(name: str, operation: str) -> UnsupportedByTargetError:
    return UnsupportedByTargetError(
        f"The TensorFlow function {name} changes a tf.Variable ({operation}), which a JAX program "
        "cannot. Return the new value, and assign it outside; or call the function outside of "
        "jax.jit, scan, cond, while_loop and convert, where it runs operation by operation.",
        operation=operation,
        source=None,
    )


def _dynamic_result(name: str, traced: Traced) -> UnsupportedByTargetError:
    operation = _first_of_unknown_size(traced)
    return UnsupportedByTargetError(
        f"The TensorFlow function {name} gives a result whose size depends on the values of its "
        f"arguments, by the operation {operation}, and sizes in a JAX program are fixed. Give a "
        "result of fixed size, for instance padded (tf.pad, tf.where with three arguments); or "
        "call the function outside of jax.jit, scan, cond, while_loop and convert.",
        operation=operation,
        source=None,
    )


def _first_of_unknown_size(traced: Traced) -> str:
    for op in traced.concrete.graph.get_operations():
        unknown = any(not t.shape.is_fully_defined() for t in op.outputs)
        if unknown and all(t.shape.is_fully_defined() for t in op.inputs):
            return str(op.type)
    return "that gives it"
