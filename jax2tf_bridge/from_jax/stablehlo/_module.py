"""StableHLO modules in memory: inspecting, rewriting and serializing them."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jax2tf_bridge._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.bytecode import Version, version_text
from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._constants import (
    PLACEHOLDER_TARGET,
    Intern,
    TakenArrays,
    embed,
    lift,
    may_be_large,
)
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    create_zeros,
    custom_call_target,
    drop_empty_attributes,
    find_main,
    function_type,
    replace_by_operation,
    replace_operation,
    set_function_type,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.from_jax.stablehlo._rewrites import (
    EXTREMES,
    close_regions,
    keep_nan,
    merge_equal,
)
from jax2tf_bridge.from_jax.stablehlo._rounding import round_results
from jax2tf_bridge.from_jax.stablehlo._sharding import (
    SHARDING,
    add_sharding_shapes,
    drop_collectives,
    drop_shardings,
    has_written_shardings,
    may_have_collectives,
)

_INLINE_COMPOSITES = (
    "builtin.module(func.func(stablehlo-legalize-composite-to-call),inline,symbol-dce)"
)
_EXPAND_CHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_EXPAND = "builtin.module(stablehlo-compatibility-expander{{target={version}}})"

_DIALECTS = ("builtin.", "func.", "stablehlo.", "sdy.")
"""Dialects that portable artifacts may contain."""

_PLATFORM_INDEX = "_platform_index"

_MAX_LOCATION_CHARACTERS = 1000
"""Maximum number of characters of "file:line" in an MLIR message."""
_NARROW = re.compile(rf"(?:\b|x)(?:{'|'.join(ELEMENT_TYPES[name] for name in WIDENED)})>")

_ILLEGAL_OP = re.compile(r"'vhlo\.(\w+?)_v\d+'")
_SOURCE = re.compile(r'"([^"<>]+\.\w+)":(\d+)')
_OPERATION_NAME = re.compile(r'loc\("(?:jit\(.*?\)/)*([^"]*)"')
_PRECISION = r"(?:#stablehlo<precision DEFAULT>|DEFAULT)"
_DEFAULTS = "|".join(
    (
        rf"precision(?:_config)? = \[{_PRECISION}, {_PRECISION}\]",
        r'backend_config = ""',
        r"(?:indices_are_sorted|unique_indices) = false",
        r"pad = \[\[0, 0\](?:, \[0, 0\])*\]",
        r"padding = dense<0> : tensor<\dx2xi64>",
        r"(?:stride|lhs_dilate|rhs_dilate) = \[1(?:, 1)*\]",
        r"(?:base_dilations|window_dilations|window_strides) = array<i64: 1(?:, 1)*>",
        r"reverse = \[false(?:, false)*\]",
    )
)
_DEFAULT = re.compile(rf"(?<=[{{ ])(?:{_DEFAULTS})(?:, |(?=[}} ]))")
_EMPTY_ATTRIBUTES = re.compile(r" \{\}|, (?=\}| :)")

T = TypeVar("T")


@dataclass(frozen=True)
class ModuleOperation:
    """An operation of the module.

    Attributes:
      name: the operation or the custom call target.
      primitive: the JAX primitive that it comes from, if the location names one.
      source: the user's line as "file:line", if known.
    """

    name: str
    primitive: str | None
    source: str | None

    def __str__(self) -> str:
        origin = f" from {self.primitive}" if self.primitive else ""
        return f"{self.name!r}{origin}{f' at {self.source}' if self.source else ''}"


class LossyError(Exception):
    """A StableHLO version cannot express the module, because it lacks `operation`."""

    def __init__(self, operation: ModuleOperation, detail: str) -> None:
        """Stores the operation; `detail` is for tracebacks, not for users."""
        super().__init__(f"{operation}: {detail}")
        self.operation = operation


class _OperationIndex:
    """An index of a module's operations; cached because walking the module is slow.

    Attributes:
      operations: maps each name to its operations, in order.
      types: the types of all results.
    """

    def __init__(self, module: Any) -> None:
        self.operations: dict[str, list[Any]] = {}
        self.types: set[Any] = set()

        def add(op: Any) -> ir.WalkResult:
            self.operations.setdefault(op.name, []).append(op)
            self.types.update(result.type for result in op.results)
            return ir.WalkResult.ADVANCE

        module.operation.walk(add, ir.WalkOrder.PRE_ORDER)


class StableHloModule:
    """A module and the MLIR context that it lives in."""

    def __init__(self, module: Any, *, may_be_sharded: bool | None = None) -> None:
        """Wraps an ir.Module and modifies it in place.

        Args:
          module: must not be used by anyone else.
          may_be_sharded: False if no attribute is a Shardy sharding; checked by default.
        """
        self._context = module.context
        self._module = module
        self._index: _OperationIndex | None = None
        if may_be_sharded is None:
            may_be_sharded = _may_have_shardings(_jax_compat.write_bytecode(module))
        self._may_be_sharded = may_be_sharded

    @classmethod
    def read(cls, artifact: bytes) -> StableHloModule:
        """Reads a portable artifact.

        Raises:
          jax.errors.JaxRuntimeError: the installed jaxlib cannot read it.
        """
        with _jax_compat.make_ir_context():
            module = _jax_compat.deserialize_module(artifact)
        return cls(module, may_be_sharded=_may_have_shardings(artifact))

    def _get_index(self) -> _OperationIndex:
        if self._index is None:
            self._index = _OperationIndex(self._module)
        return self._index

    @contextlib.contextmanager
    def _edit(self) -> Iterator[Any]:
        """Yields the ir.Module in its MLIR context for a change.

        The index of operations is dropped before and after the block. Do not use an operation
        after a pass, which may free it.
        """
        self._index = None
        try:
            with self._context, ir.Location.unknown():
                yield self._module
        finally:
            self._index = None

    def _find_operations(self, *names: str) -> list[Any]:
        operations = self._get_index().operations
        return [op for name in names for op in operations.get(name, ())]

    def finalize(self) -> bool:
        """Applies JAX's serialization rewrites in place; returns False if only JAX can do them.

        On serialization JAX replaces CHLO operations by calls, composites or StableHLO, depending
        on its release, and complex functions by real ones. Only squares, the most common CHLO
        operation, are replaced here.
        """
        if self._find_foreign_names() == {"chlo.square"}:
            with self._edit() as module:
                _jax_compat.run_mlir_passes(module, _EXPAND_CHLO)
        for function in self._find_operations("func.func"):
            drop_empty_attributes(function)
        return not (
            self._find_foreign_names()
            or any("complex<" in str(kind) for kind in self._get_index().types)
            or any(
                op.parent.name == "func.func" for op in self._find_operations("stablehlo.return")
            )
        )

    def _find_foreign_names(self) -> set[str]:
        """Returns the names of operations whose dialects artifacts do not contain."""
        return {name for name in self._get_index().operations if not name.startswith(_DIALECTS)}

    def simplify(self) -> None:
        """Merges equal operations, and replaces choices between equal branches by the branch."""
        with self._edit() as module:
            merge_equal(module)
            close_regions(self._get_index().operations)

    def keep_nan(self) -> None:
        """Rewrites maxima and minima in which TensorFlow's XLA would lose NaN on the CPU."""
        if self._find_operations(*EXTREMES):
            with self._edit() as module:
                keep_nan(module)

    def expand(self) -> None:
        """Expands composite and CHLO operations into StableHLO that every reader knows.

        JAX up to 0.9 writes CHLO operations (top_k, erf, acos, ...) as custom calls "mhlo.NAME",
        which older XLA does not know.
        """
        if self._find_operations("stablehlo.composite"):
            with self._edit() as module:
                _jax_compat.run_mlir_passes(module, _INLINE_COMPOSITES)
        calls = [op for op, target in self.custom_call_operations() if target.startswith("mhlo.")]
        if calls:
            with self._edit() as module:
                for call in calls:
                    _replace_by_chlo(call)
                _jax_compat.run_mlir_passes(module, _EXPAND_CHLO)

    def round_results(self, seed: int) -> None:
        """Rounds the results of operations to shorter floats; see `_rounding.round_results`."""
        with self._edit() as module:
            round_results(module, seed)

    def reduce_to_one_device(self, function_name: str) -> None:
        """Removes collectives and Shardy's annotations, which are no-ops on one device.

        Raises:
          ShardingError: a collective needs more than one device.
        """
        cause = None
        names = {
            *self._get_index().operations,
            *(name for _, name in self.custom_call_operations()),
        }
        if may_have_collectives(names):
            with self._edit() as module:
                cause = drop_collectives(module)
        if self._may_be_sharded or self._uses_operations_of_shardy():
            with self._edit() as module:
                drop_shardings(module)
        if cause is not None:
            raise ShardingError(
                f"{function_name} uses a mesh of several devices ({cause}), but JAX lowers it for "
                "one, since no argument or result is spread over the mesh. Give jax.jit "
                "in_shardings and out_shardings over the mesh, or use a mesh of one device."
            )

    def narrow_platform_index(self) -> None:
        """Narrows main's platform index to int32, which TF 2.15 needs; with x64 it is int64."""
        attributes = attribute(find_main(self._module), "arg_attrs")
        has_index = attributes and _PLATFORM_INDEX in str(attributes[0])
        if has_index and self.main_types()[0][0] == "tensor<i64>":
            self.retype_main({0: "i32"}, {})

    def retype_main(self, inputs: Mapping[int, str], results: Mapping[int, str]) -> None:
        """Changes the element types of some arguments and results of main.

        The body keeps its types; conversions are inserted at its start and end.

        Args:
          inputs: maps argument indices to element types as MLIR writes them ("i8", "ui4").
          results: the same for result indices.
        """
        main = find_main(self._module)
        block = main.regions[0].blocks[0]
        function = function_type(main)
        types = list(function.inputs), list(function.results)
        with self._edit():
            for i, element in inputs.items():
                argument: Any = block.arguments[i]
                inner, types[0][i] = types[0][i], _replace_element_type(types[0][i], element)
                argument.set_type(types[0][i])
                with ir.InsertionPoint.at_block_begin(block):
                    converted = _convert(argument, inner)
                argument.replace_all_uses_except(converted.results[0], converted)
            end = block.operations[len(block.operations) - 1].operation
            for i, element in results.items():
                types[1][i] = _replace_element_type(types[1][i], element)
                with ir.InsertionPoint(end):
                    end.operands[i] = _convert(end.operands[i], types[1][i]).results[0]
            set_function_type(main, *types)

    def lift_constants(
        self,
        intern: Intern[T],
        *,
        taken: TakenArrays | None = None,
        share: Intern[T] | None = None,
    ) -> list[T]:
        """Turns large constants into trailing arguments of main; see `_constants.lift`."""
        constants = self._find_operations("stablehlo.constant", "stablehlo.custom_call")
        if not any(may_be_large(op) for op in constants):
            return []
        with self._edit() as module:
            return lift(module, intern, taken=taken, share=share)

    def embed_constants(self, arrays: Sequence[bytes | memoryview]) -> None:
        """Turns the last arguments of main into constants: the inverse of `lift_constants`."""
        with self._edit() as module:
            embed(module, arrays)

    def uses_narrow_integers(self) -> bool:
        """Returns whether the module computes with integers of fewer than 8 bits."""
        return any(_NARROW.search(str(kind)) is not None for kind in self._get_index().types)

    def uses_batching_dims(self) -> bool:
        """Returns whether a gather or scatter has batching dimensions."""
        names = {
            "stablehlo.gather": "dimension_numbers",
            "stablehlo.scatter": "scatter_dimension_numbers",
        }
        return any(
            "batching_dims" in str(op.attributes[names[op.name]])
            for op in self._find_operations(*names)
        )

    def describe_custom_calls(self) -> tuple[ModuleOperation, ...]:
        """Returns the first custom call of each target, in order of appearance."""
        first_calls: dict[str, ModuleOperation] = {}
        for op, name in self.custom_call_operations():
            if name not in first_calls and name != PLACEHOLDER_TARGET:
                first_calls[name] = _describe(name, str(op.location))
        return tuple(first_calls.values())

    def custom_call_operations(self) -> list[tuple[Any, str]]:
        """Returns the stablehlo.custom_call operations with their targets, in order."""
        return [
            (op, custom_call_target(op)) for op in self._find_operations("stablehlo.custom_call")
        ]

    def replace_by_function(
        self, call: Any, operands: Sequence[Any], function: StableHloModule, name: str
    ) -> None:
        """Replaces an operation by a call of another module's main.

        The source module's functions are copied into this one.

        Args:
          call: an operation of this module. Results that main does not return become zeros.
          operands: values of this module that are passed to main.
          function: the source module. Its shape assertions are dropped, because the operands
            already have concrete sizes.
          name: prefix for the names of the copied functions.
        """
        self._may_be_sharded |= function._may_be_sharded
        bytecode = _jax_compat.write_bytecode(function._module)
        with self._edit() as module:
            source = ir.Module.parse(bytecode)
            main = _copy_functions(source, module, name)
            results = [result.type for result in call.results]
            with ir.InsertionPoint(call):
                function_call = ir.Operation.create(
                    "func.call",
                    results=list(function_type(main).results),
                    operands=list(operands),
                    attributes={"callee": ir.FlatSymbolRefAttr.get(symbol_name(main) or "")},
                    loc=call.location,
                )
                values = list(function_call.results)[: len(results)]
                values += [create_zeros(kind) for kind in results[len(values) :]]
            replace_operation(call.operation, values)

    def uses_shardy(self) -> bool:
        """Returns whether it has Shardy's shardings, for which TF needs calling convention 10."""
        return has_written_shardings(self._module) or self._uses_operations_of_shardy()

    def _uses_operations_of_shardy(self) -> bool:
        return any(name.startswith("sdy.") for name in self._get_index().operations)

    def main_types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the types of main's arguments and results, as MLIR prints them."""
        function = function_type(find_main(self._module))
        return tuple(map(str, function.inputs)), tuple(map(str, function.results))

    def serialize(self, version: Version) -> bytes:
        """Writes the module as a portable artifact at `version`, without loss.

        Raises:
          LossyError: the version cannot express the module, or drops a part of it.
        """
        target = version_text(version)
        with self._context:
            expanded = ir.Module.parse(_jax_compat.write_bytecode(self._module))
            try:
                _jax_compat.run_mlir_passes(expanded, _EXPAND.format(version=target))
                has_open_sizes = any("?" in kind for kind in self.main_types()[0])
                if has_open_sizes and self.uses_shardy():
                    artifact = _jax_compat.serialize_module(expanded)
                    expanded = _jax_compat.deserialize_module(artifact)
                    add_sharding_shapes(expanded)
                artifact = _jax_compat.serialize_module(expanded, target)
            except (ir.MLIRError, RuntimeError, ValueError) as e:
                raise _make_lossy_error(e) from e
            written = _jax_compat.deserialize_module(artifact)
            if _are_texts_equal(_print(written), _print(expanded)):
                return artifact
            # Compare two artifacts, which differ only by version.
            again = _jax_compat.serialize_module(expanded)
            before, after = _print(_jax_compat.deserialize_module(again)), _print(written)
        if before != after:
            pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
            line = next(old for old, new in pairs if old != new)
            match = re.search(r"(\w+\.\w+)", line)
            name = match.group(1) if match else "an operation"
            raise LossyError(ModuleOperation(name, None, None), f"{target} drops part of: {line}")
        return artifact


def _may_have_shardings(data: bytes) -> bool:
    # The attribute's name is in the table of strings of an artifact or bytecode.
    return SHARDING.encode() in data


def _copy_functions(source: Any, module: Any, name: str) -> Any:
    """Copies all functions of `source` into `module` under new names; returns the copy of main."""
    names = {symbol_name(o.operation) for o in module.body}
    prefix = next(p for i in itertools.count() if f"{(p := f'{name}_{i}')}_main" not in names)
    functions = [o.operation for o in source.body.operations]
    for function in functions:
        old = symbol_name(function) or ""
        ir.SymbolTable.replace_all_symbol_uses(old, f"{prefix}_{old}", source.operation)
        ir.SymbolTable.set_symbol_name(function, f"{prefix}_{old}")
        ir.SymbolTable.set_visibility(function, "private")
    copies = [f.clone(ir.InsertionPoint(module.body)) for f in functions]
    for operation in [op for copy in copies for op in walk_operations(copy.operation)]:
        if custom_call_target(operation) == "shape_assertion":
            operation.erase()
    main_name = f"{prefix}_main"
    return next(c.operation for c in copies if symbol_name(c.operation) == main_name)


def _replace_element_type(kind: Any, element: str) -> Any:
    tensor = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(tensor.shape, ir.Type.parse(element), tensor.encoding)


def _convert(value: Any, kind: Any) -> Any:
    return ir.Operation.create("stablehlo.convert", results=[kind], operands=[value])


def _replace_by_chlo(call: Any) -> None:
    """Replaces a custom call "mhlo.NAME" by the CHLO operation that it stands for."""
    name = custom_call_target(call).removeprefix("mhlo.")
    name = f"chlo.{'top_k' if name == 'topk' else name}"
    attributes = attributes_of(ir.DictAttr(call.attributes["mhlo.attributes"]))
    replace_by_operation(call, name, call.operands, attributes)


def _describe(name: str, location: str) -> ModuleOperation:
    primitive = _OPERATION_NAME.search(location)
    # The first location is the innermost one, and JAX leaves its own files out.
    source = _SOURCE.search(location)
    return ModuleOperation(
        name,
        primitive.group(1).rsplit("/", 1)[-1] if primitive else None,
        f"{source.group(1)}:{source.group(2)}" if source else None,
    )


def _make_lossy_error(error: Exception) -> LossyError:
    detail = str(error)
    match = _ILLEGAL_OP.search(detail)
    name = f"stablehlo.{match.group(1)}" if match else "an operation"
    if name == "stablehlo.func":
        name = "the type of an argument or result of a function"
    # The message contains whole functions with constants; searching all of it takes seconds.
    before = detail.partition(": error")[0][-_MAX_LOCATION_CHARACTERS:]
    place = re.search(r"(\S+\.\w+:\d+):\d+$", before)
    return LossyError(ModuleOperation(name, None, place and place.group(1)), detail)


def _are_texts_equal(left: str, right: str) -> bool:
    """Returns whether two module texts are equal, apart from attributes at their defaults."""
    left_lines, right_lines = left.splitlines(), right.splitlines()
    return len(left_lines) == len(right_lines) and all(
        a == b or _strip_defaults(a) == _strip_defaults(b)
        for a, b in zip(left_lines, right_lines, strict=True)
    )


def _strip_defaults(line: str) -> str:
    return _EMPTY_ATTRIBUTES.sub("", _DEFAULT.sub("", line))


def _print(module: Any) -> str:
    return str(
        module.operation.get_asm(
            enable_debug_info=False, large_elements_limit=16, assume_verified=True
        )
    )
