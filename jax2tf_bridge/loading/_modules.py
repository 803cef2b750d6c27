"""Runs StableHLO modules as JAX functions, refined to the shapes of each call."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jax2tf_bridge._dtypes import ELEMENT_TYPES
from jax2tf_bridge.bytecode import read_main_types, read_stablehlo_version, version_text
from jax2tf_bridge.errors import ModuleError, ShapeError
from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.from_jax.stablehlo import (
    attribute,
    find_main,
    function_type,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.loading._functions import LoadedFunction, check_arrays
from jax2tf_bridge.portable import (
    Aval,
    Gradient,
    GradientOnDemand,
    Module,
    NoGradient,
    PortableFunction,
    read_tensor_type,
)
from jax2tf_bridge.targets import Target


@dataclass(frozen=True)
class CallableModule:
    """A module that JAX can call, with the flat arguments of its operation.

    Attributes:
      name: the name in error messages.
      module: the portable artifact.
      platforms: the platforms that it was lowered for, by JAX's names.
      convention: the version of the calling convention.
      kept_arguments: the indices of the flat arguments that the module takes.
      labels: the names of the flat arguments in error messages.
      gradient: the VJP, or None for the reason in `gradient_missing`.
      gradient_missing: the reason why there is no VJP.
    """

    name: str
    module: bytes
    platforms: tuple[str, ...]
    convention: int
    kept_arguments: tuple[int, ...]
    labels: tuple[str, ...]
    gradient: CallableModule | None = None
    gradient_missing: str = ""

    def read_types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the types of the arguments, without the platform index, and of the results.

        Raises:
          FileFormatError: the module cannot be read.
        """
        ins, outs = read_main_types(self.module)
        return ins[1:] if len(self.platforms) > 1 else ins, outs

    def make_function(
        self, avals: Sequence[Aval], results: Sequence[Aval] | None = None
    ) -> PortableFunction:
        """Makes a portable function, with its VJPs, for arguments of these shapes.

        Args:
          avals: the shapes and dtypes of the flat arguments.
          results: the expected results, if the module is a VJP.

        Raises:
          ShapeError: the module does not take these arguments.
          ModuleError: the installed JAX cannot read the module.
        """
        module_avals = [avals[i] for i in self.kept_arguments]
        module, version, types = _refine(self, module_avals)
        module_outs = [_parse_type(text) for text in types]
        outs = module_outs if results is None else _check_gradient_types(module_outs, results)
        portable = PortableFunction.over_leaves(
            self.name,
            Module(
                module,
                version,
                self.convention,
                kept_arguments=self.kept_arguments,
                platforms=self.platforms,
                uses_shape_polymorphism=True,  # lets XLA fold values that depend on sizes
            ),
            avals,
            outs,
            target=Target.widest(),
            producer="a SavedModel",
        )
        gradient: Gradient = NoGradient(self.gradient_missing)
        vjp = self.gradient
        if vjp is not None:
            vjp_avals = [*avals, *map(_make_cotangent_aval, outs)]
            vjp_results = list(map(_make_cotangent_aval, avals))
            gradient = GradientOnDemand(lambda: vjp.make_function(vjp_avals, vjp_results))
        return replace(portable, argument_names=self.labels, gradient=gradient)


def _make_cotangent_aval(aval: Aval) -> Aval:
    return aval if aval.is_differentiable else Aval(aval.shape, "float0")


class ModuleFunction:
    """A called module as a JAX function of its flat arguments; thread-safe."""

    def __init__(self, callee: CallableModule) -> None:
        self._callee = callee
        self._functions: dict[tuple[Aval, ...], LoadedFunction] = {}
        self._lock = threading.Lock()
        self._ins, _ = callee.read_types()

    def __call__(self, args: Sequence[Any]) -> Sequence[Any]:
        """Returns the flat results.

        Raises:
          ShapeError, DTypeError: the arguments do not fit.
        """
        kept_args = [args[place] for place in self._callee.kept_arguments]
        check_arrays(self._callee.name, self._list_expected(), kept_args)
        avals = tuple(_make_aval(arg) for arg in args)
        with self._lock:
            function = self._functions.get(avals)
            if function is None:
                portable = self._callee.make_function(avals)
                function = LoadedFunction(self._callee.name, portable, takes_params=False)
                self._functions[avals] = function
        return function.call_on_leaves(args)

    def _list_expected(self) -> Iterator[tuple[str, list[object], str]]:
        for place, text in zip(self._callee.kept_arguments, self._ins, strict=True):
            sizes, dtype = _split_type(text)
            yield self._callee.labels[place], [s if s == "?" else int(s) for s in sizes], dtype


def _make_aval(value: Any) -> Aval:
    aval = jax.eval_shape(lambda x: x, value)
    return Aval(tuple(np.shape(value)), str(aval.dtype))


def _refine(
    callee: CallableModule, avals: Sequence[Aval]
) -> tuple[bytes, tuple[int, int, int], list[str]]:
    """Refines a module to its arguments; returns it, its StableHLO version and its result types."""
    types = [_format_type(aval) for aval in avals]
    if len(callee.platforms) > 1:
        types.insert(0, read_main_types(callee.module)[0][0])
    newest = jax_compat.get_stablehlo_version()
    with jax_compat.make_ir_context():
        try:
            module = jax_compat.deserialize_module(callee.module)
        except Exception as e:  # the type differs between releases of jaxlib
            version = read_stablehlo_version(memoryview(callee.module))
            written = "" if version is None else f", of StableHLO {version_text(version)}"
            raise ModuleError(
                f"The installed JAX {jax.__version__} cannot read the module of {callee.name}"
                f"{written}: it reads up to {version_text(newest)}. If that is older, upgrade JAX; "
                "else the module is damaged."
            ) from e
        try:
            _run_passes(module, _REFINE_ARGUMENTS.format(types=",".join(types)))
            # Main computes sizes and passes them to inner functions as scalars, which become
            # constants. The passes do not propagate these constants.
            while _inline_constant_arguments(module):
                _run_passes(module, _REFINE_SHAPES)
            _check_assertions(module)
        except _MisfitError as e:
            arguments = ", ".join(
                f"{callee.labels[i]}: {aval}"
                for i, aval in zip(callee.kept_arguments, avals, strict=True)
            )
            raise ShapeError(
                f"{callee.name} cannot be run on these shapes and dtypes: {arguments}. "
                f"{str(e) or 'The sizes do not fit together.'}"
            ) from e
        results = [str(t) for t in function_type(find_main(module)).results]
        refined = jax_compat.serialize_module(module)
    return refined, newest, results


def _format_type(aval: Aval) -> str:
    element = ELEMENT_TYPES.get(aval.op_dtype)
    if element is None:
        raise ModuleError(
            f"A value of dtype {aval.dtype} cannot be passed to a StableHLO module. Convert it "
            "first."
        )
    return f"tensor<{''.join(f'{size}x' for size in aval.op_shape)}{element}>"


def _parse_type(text: str) -> Aval:
    sizes, dtype = _split_type(text)
    if "?" in sizes:
        raise ModuleError(
            f"A module returns a {text} for known shapes, and JAX cannot determine its size. Load "
            "the SavedModel with TensorFlow."
        )
    return Aval(tuple(map(int, sizes)), dtype)


def _split_type(text: str) -> tuple[list[str], str]:
    parts = read_tensor_type(text)
    if parts is None:
        raise ModuleError(
            f"A module takes or returns a {text}, whose shape or dtype JAX does not know. Load "
            "the SavedModel with TensorFlow."
        )
    return parts


def _check_gradient_types(avals: Sequence[Aval], results: Sequence[Aval]) -> list[Aval]:
    """Returns `results` if the sizes agree: a module returns bools as cotangents of integers."""
    if [a.op_shape for a in avals] != [a.op_shape for a in results]:
        raise ShapeError(
            "The sizes of the arguments do not fit together: the gradient of an argument would be "
            f"{', '.join(map(str, avals))}, expected {', '.join(map(str, results))}."
        )
    return list(results)


_REFINE_ARGUMENTS = (
    "builtin.module(stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes)"
)
_REFINE_SHAPES = "builtin.module(stablehlo-refine-shapes)"


class _MisfitError(Exception):
    """The module does not take arguments of these types; the text is the reason, if known."""


def _run_passes(module: Any, pipeline: str) -> None:
    try:
        jax_compat.run_mlir_passes(module, pipeline)
    except Exception as e:  # the type differs between releases of jaxlib
        raise _MisfitError from e


def _inline_constant_arguments(module: Any) -> bool:
    """Replaces function arguments that are the same constant scalar in every call.

    Returns whether the module changed.
    """
    functions = {symbol_name(op.operation): op.operation for op in module.body.operations}
    arguments: dict[tuple[str, int], list[Any]] = {}
    for op in walk_operations(module.operation):
        if op.name != "func.call":
            continue
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        for i, operand in enumerate(op.operands):
            arguments.setdefault((callee, i), []).append(_read_scalar(operand))
    has_changed = False
    for (callee, i), values in arguments.items():
        texts = {"" if value is None else str(value) for value in values}
        if callee not in functions or callee == "main" or len(texts) > 1 or "" in texts:
            continue
        block = functions[callee].regions[0].blocks[0]
        argument = block.arguments[i]
        if not list(argument.uses):
            continue
        with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
            constant = ir.Operation.create(
                "stablehlo.constant", results=[argument.type], attributes={"value": values[0]}
            )
        argument.replace_all_uses_with(constant.results[0])
        has_changed = True
    return has_changed


def _check_assertions(module: Any) -> None:
    """Raises the module's own error message if sizes contradict one of its assertions."""
    # XLA would report it too when it compiles, but within a page of MLIR.
    for op in walk_operations(module.operation):
        if op.name != "stablehlo.custom_call":
            continue
        if ir.StringAttr(op.attributes["call_target_name"]).value != "shape_assertion":
            continue
        holds, *sizes = [_read_scalar(operand) for operand in op.operands]
        message = attribute(op, "error_message")
        if message is None or holds is None or "false" not in str(holds):
            continue
        text = ir.StringAttr(message).value.partition(" Using the following")[0]
        for i, size in enumerate(sizes):
            match = re.match(r"dense<(-?\d+)>", str(size))
            text = text.replace(f"{{{i}}}", match[1] if match else "?")
        raise _MisfitError(text)


def _read_scalar(value: Any) -> Any:
    """Returns the value of a scalar constant; None for anything else."""
    owner = value.owner
    # The owner of an argument is a block, which has no name.
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    integer = str(value.type).startswith(("tensor<i", "tensor<ui"))
    return owner.attributes["value"] if integer else None
