"""StableHLO modules in memory: what is in them, and writing them at another version."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from jax2tf_bridge.errors import ShardingError
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo import _constants as _stablehlo_constants
from jax2tf_bridge.from_jax.stablehlo import _sharding_calls as _stablehlo_shardings
from jax2tf_bridge.from_jax.stablehlo._keeping_nan import EXTREMES, keep_nan
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    below,
    custom_call_target,
    drop_empty_attributes,
    function_type,
    main_of,
    replace_operation,
    set_function_type,
    symbol_name,
    zeros,
)
from jax2tf_bridge.from_jax.stablehlo._simplifying import close_regions, merge_equal
from jax2tf_bridge.from_jax.stablehlo._single_device_collectives import (
    drop_collectives,
    may_be_collectives,
)
from jax2tf_bridge.from_jax.stablehlo._taken_arrays import CONSTANT, TakenArrays
from jax2tf_bridge.portable._dtypes import ELEMENT_TYPES, WIDENED
from jax2tf_bridge.portable._stablehlo_version import Version, version_text

_INLINE_COMPOSITES = (
    "builtin.module(func.func(stablehlo-legalize-composite-to-call),inline,symbol-dce)"
)
_EXPAND_CHLO = "builtin.module(func.func(chlo-legalize-to-stablehlo))"
_EXPAND = "builtin.module(stablehlo-compatibility-expander{{target={version}}})"

_DIALECTS = ("builtin.", "func.", "stablehlo.", "sdy.")
"""Of portable artifacts."""

_PLATFORM_INDEX = "_platform_index"
_SHARDING = "sdy.sharding"

_LONGEST_PLACE = 1000
"""Characters of a file's name and a line number in a message of MLIR's."""
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
_LEFT_OVER = re.compile(r" \{\}|, (?=\}| :)")

T = TypeVar("T")


@dataclass(frozen=True)
class FoundOperation:
    """An operation of the module and where the user wrote it ("file:line"), if known.

    `primitive` is the JAX primitive's name, as far as the location tells.
    """

    name: str
    primitive: str | None
    source: str | None

    def __str__(self) -> str:
        made_by = f" from {self.primitive}" if self.primitive else ""
        return f"{self.name!r}{made_by}{f' at {self.source}' if self.source else ''}"


class LossyError(Exception):
    """A version cannot express the module; `operation` says what stands against it."""

    def __init__(self, operation: FoundOperation, detail: str) -> None:
        """Takes `detail` for the chain of causes, not for users."""
        super().__init__(f"{operation}: {detail}")
        self.operation = operation


class _Contents:
    """Lists what is in a module, until that is changed: walking over it takes longest.

    Attributes:
      operations: those of each name, in order.
      types: of all results.
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
        """Takes an ir.Module, which is changed with it.

        Args:
          module: is nobody else's.
          may_be_sharded: False if Shardy's shardings are in none of its attributes, if known.
        """
        self._context = module.context
        self._module = module
        self._known: _Contents | None = None
        if may_be_sharded is None:
            may_be_sharded = _names_shardings(_jax_compat.module_bytecode(module))
        self._may_be_sharded = may_be_sharded

    @classmethod
    def read(cls, artifact: bytes) -> StableHloModule:
        """Reads a portable artifact.

        Raises:
          jax.errors.JaxRuntimeError: it is not readable by the installed jaxlib.
        """
        with _jax_compat.make_ir_context():
            module = _jax_compat.deserialize_module(artifact)
        return cls(module, may_be_sharded=_names_shardings(artifact))

    def _contents(self) -> _Contents:
        """Lists what is in it. Who changes it calls `_changed`, and touches none of these again."""
        if self._known is None:
            self._known = _Contents(self._module)
        return self._known

    def _changed(self) -> None:
        self._known = None

    def _named(self, *names: str) -> list[Any]:
        """Lists the operations of these names."""
        operations = self._contents().operations
        return [op for name in names for op in operations.get(name, ())]

    def becomes_final(self) -> bool:
        """Makes of a module as it is lowered what JAX writes of it; False where only JAX can.

        Writing it, JAX replaces operations of CHLO by calls, composites or StableHLO, as the
        release has it, and complex functions by real ones. Squares, the most usual ones, are
        replaced here.
        """
        if self._operations_of_others() == {"chlo.square"}:
            self._changed()
            with self._context:
                _jax_compat.run_passes(self._module, _EXPAND_CHLO)
        contents = self._contents()
        for function in self._named("func.func"):
            drop_empty_attributes(function)
        returns = contents.operations.get("stablehlo.return", ())
        return not (
            self._operations_of_others()
            or any("complex<" in str(kind) for kind in contents.types)
            or any(op.parent.name == "func.func" for op in returns)
        )

    def _operations_of_others(self) -> set[str]:
        """Names the operations of dialects that artifacts do not have."""
        return {name for name in self._contents().operations if not name.startswith(_DIALECTS)}

    def simplify(self) -> None:
        """Removes what it says more than once: equal operations, and choices of equal branches."""
        self._changed()
        with self._context:
            merge_equal(self._module)
            if close_regions(self._contents().operations):
                self._changed()

    def keep_nan(self) -> None:
        """Rewrites maxima and minima that TensorFlow's XLA would drop NaN from on the CPU."""
        with self._context:
            if any(self._named(name) for name in EXTREMES):
                self._changed()
                keep_nan(self._module)

    def expand(self) -> None:
        """Replaces operations that stand for others by those, so that every reader knows all.

        These are stablehlo.composite, and the operations of the CHLO dialect (top_k, erf, acos,
        ...), which JAX up to 0.9 writes as custom calls "mhlo.NAME" that older XLA does not know.
        """
        # A pass frees operations: none that was looked at before may be touched after it.
        with self._context:
            if self._named("stablehlo.composite"):
                self._changed()
                _jax_compat.run_passes(self._module, _INLINE_COMPOSITES)
            calls = [
                op for op, target in self.custom_call_operations() if target.startswith("mhlo.")
            ]
            if calls:
                self._changed()
                for call in calls:
                    _as_chlo(call)
                _jax_compat.run_passes(self._module, _EXPAND_CHLO)

    def reduce_to_one_device(self, function_name: str) -> None:
        """Removes collectives, and Shardy's annotations, which change nothing on one device.

        Raises:
          ShardingError: a collective takes more devices; `function_name` is the function's.
        """
        left = None
        names = {*self._contents().operations, *(name for _, name in self.custom_call_operations())}
        if may_be_collectives(names):
            self._changed()
            with self._context:
                left = drop_collectives(self._module)
        self._drop_shardings()
        if left is not None:
            raise ShardingError(
                f"{function_name} uses a mesh of several devices ({left}), but JAX lowers it for "
                "one, since no argument or result is spread over the mesh. Give jax.jit "
                "in_shardings and out_shardings over the mesh, or use a mesh of one device."
            )

    def _drop_shardings(self) -> None:
        """Removes Shardy's constraints, shardings and meshes, which say nothing on one device.

        JAX writes them for typed PRNG keys and meshes of one device, and reading them takes calling
        convention 10.
        """
        if not (self._may_be_sharded or self._uses_operations_of_shardy()):
            return
        self._changed()
        meshes = []
        for op in list(self._walk()):
            if op.name == "sdy.sharding_constraint":
                replace_operation(op, op.operands)
            elif op.name == "sdy.mesh":
                meshes.append(op)
            else:
                self._drop_shardings_of(op)
        # What else there is of Shardy may name a mesh.
        if not any(op.name.startswith("sdy.") and op.name != "sdy.mesh" for op in self._walk()):
            for mesh in meshes:
                mesh.erase()

    def _drop_shardings_of(self, op: Any) -> None:
        """Removes the shardings of an operation's results and of a function's arguments."""
        if _SHARDING in op.attributes:
            del op.attributes[_SHARDING]
        for name in ("arg_attrs", "res_attrs"):
            each = attribute(op, name)
            if each is None or not any(_SHARDING in ir.DictAttr(a) for a in each):
                continue
            with self._context:
                op.attributes[name] = ir.ArrayAttr.get([_without_sharding(a) for a in each])

    def narrow_platform_index(self) -> None:
        """Makes main's platform index 32 bits wide, as TF 2.15 wants it; x64 makes it 64."""
        main = main_of(self._module)
        attributes = attribute(main, "arg_attrs")
        block = main.regions[0].blocks[0]
        if not attributes or _PLATFORM_INDEX not in str(attributes[0]):
            return
        function = function_type(main)
        wide, *others = function.inputs
        if str(wide) != "tensor<i64>":
            return
        self._changed()
        with self._context, ir.Location.unknown():
            index: Any = block.arguments[0]
            index.set_type(ir.RankedTensorType.get([], ir.IntegerType.get_signless(32)))
            with ir.InsertionPoint.at_block_begin(block):
                widened = ir.Operation.create("stablehlo.convert", results=[wide], operands=[index])
            index.replace_all_uses_except(widened.results[0], widened)
            set_function_type(main, [index.type, *others], function.results)

    def retype_main(self, inputs: Mapping[int, str], results: Mapping[int, str]) -> None:
        """Gives some arguments and results of main other element types, and converts within.

        Args:
          inputs: by the argument's index, the element type as MLIR writes it ("i8", "ui4").
          results: by the result's index.
        """
        self._changed()
        main = main_of(self._module)
        block = main.regions[0].blocks[0]
        function = function_type(main)
        types = list(function.inputs), list(function.results)
        with self._context, ir.Location.unknown():
            for i, element in inputs.items():
                argument: Any = block.arguments[i]
                inner, types[0][i] = types[0][i], _with_element(types[0][i], element)
                argument.set_type(types[0][i])
                with ir.InsertionPoint.at_block_begin(block):
                    converted = _convert(argument, inner)
                argument.replace_all_uses_except(converted.results[0], converted)
            end = block.operations[len(block.operations) - 1].operation
            for i, element in results.items():
                types[1][i] = _with_element(types[1][i], element)
                with ir.InsertionPoint(end):
                    end.operands[i] = _convert(end.operands[i], types[1][i]).results[0]
            set_function_type(main, *types)

    def lift_constants(
        self,
        intern: _stablehlo_constants.Intern[T],
        *,
        taken: TakenArrays | None = None,
        share: _stablehlo_constants.Intern[T] | None = None,
    ) -> list[T]:
        """Makes large constants arguments of main, after all others; see `lift` there."""
        constants = self._named("stablehlo.constant", "stablehlo.custom_call")
        if not any(_stablehlo_constants.may_be_large(op) for op in constants):
            return []
        self._changed()
        with self._context:
            return _stablehlo_constants.lift(self._module, intern, taken=taken, share=share)

    def embed_constants(self, arrays: Sequence[bytes | memoryview]) -> None:
        """Makes the last arguments of main constants: the inverse of `lift_constants`."""
        self._changed()
        with self._context:
            _stablehlo_constants.embed(self._module, arrays)

    def uses_narrow_integers(self) -> bool:
        """Tells whether it computes with integers of fewer than 8 bits."""
        return any(_NARROW.search(str(kind)) is not None for kind in self._contents().types)

    def uses_batching_dims(self) -> bool:
        """Tells whether a gather or scatter has batching dimensions."""
        names = {"stablehlo.gather": "dimension_numbers"}
        names["stablehlo.scatter"] = "scatter_dimension_numbers"
        return any(
            "batching_dims" in str(op.attributes[names[op.name]]) for op in self._named(*names)
        )

    def custom_calls(self) -> tuple[FoundOperation, ...]:
        """Lists the custom calls, one for each name, in the order in which they appear."""
        found: dict[str, FoundOperation] = {}
        for op, name in self.custom_call_operations():
            if name not in found and name != CONSTANT:
                found[name] = _describe(name, str(op.location))
        return tuple(found.values())

    def custom_call_operations(self) -> list[tuple[Any, str]]:
        """Lists the stablehlo.custom_calls themselves with their targets, in order."""
        return [(op, custom_call_target(op)) for op in self._named("stablehlo.custom_call")]

    def replace_by_function(
        self, call: Any, operands: Sequence[Any], function: StableHloModule, name: str
    ) -> None:
        """Replaces an operation by a call of another module's main.

        That module's functions are copied into this one.

        Args:
          call: the operation, of this module. Results that main does not give are zero.
          operands: main's arguments, values of this module.
          function: the other module; its shape assertions are left out, since the sizes are those
            of values that exist.
          name: what the functions' names begin with.
        """
        self._changed()
        self._may_be_sharded |= function._may_be_sharded
        bytecode = _jax_compat.module_bytecode(function._module)
        with self._context, ir.Location.unknown():
            other = ir.Module.parse(bytecode)
            main = _take_functions(other, self._module, name)
            results = [result.type for result in call.results]
            given = list(function_type(main).results)[: len(results)]
            with ir.InsertionPoint(call):
                answer = ir.Operation.create(
                    "func.call",
                    results=list(function_type(main).results),
                    operands=list(operands),
                    attributes={"callee": ir.FlatSymbolRefAttr.get(symbol_name(main) or "")},
                    loc=call.location,
                )
                values = list(answer.results)[: len(given)]
                values += [zeros(kind) for kind in results[len(given) :]]
            replace_operation(call.operation, values)

    def uses_shardy(self) -> bool:
        """Tells whether Shardy's shardings are in it, for which TF needs calling convention 10."""
        written = _stablehlo_shardings.has_written_shardings(self._module)
        return written or self._uses_operations_of_shardy()

    def _uses_operations_of_shardy(self) -> bool:
        return any(name.startswith("sdy.") for name in self._contents().operations)

    def main_types(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Returns the types of main's arguments and results, as MLIR prints them."""
        function = function_type(main_of(self._module))
        return tuple(map(str, function.inputs)), tuple(map(str, function.results))

    def serialize(self, version: Version) -> bytes:
        """Writes the portable artifact at `version`, which says the same as the module.

        Raises:
          LossyError: the version cannot express the module, or only by dropping something.
        """
        target = version_text(version)
        newest = version_text(_jax_compat.current_stablehlo_version())
        with self._context:
            expanded = ir.Module.parse(_jax_compat.module_bytecode(self._module))
            try:
                _jax_compat.run_passes(expanded, _EXPAND.format(version=target))
                if self.uses_shardy() and self._has_open_sizes():
                    artifact = _jax_compat.serialize_module(expanded, newest)
                    expanded = _jax_compat.deserialize_module(artifact)
                    _stablehlo_shardings.add_sharding_shapes(expanded)
                artifact = _jax_compat.serialize_module(expanded, target)
            except (ir.MLIRError, RuntimeError, ValueError) as e:
                raise _lossy(e) from e
            written = _jax_compat.deserialize_module(artifact)
            if _say_the_same(_text(written), _text(expanded)):
                return artifact
            # Or through a portable artifact both, so that they differ by the version alone.
            again = _jax_compat.serialize_module(expanded, newest)
            before, after = _text(_jax_compat.deserialize_module(again)), _text(written)
        if before != after:
            pairs = itertools.zip_longest(before.splitlines(), after.splitlines(), fillvalue="")
            line = next(old for old, new in pairs if old != new)
            match = re.search(r"(\w+\.\w+)", line)
            name = match.group(1) if match else "an operation"
            raise LossyError(FoundOperation(name, None, None), f"{target} drops part of: {line}")
        return artifact

    def _has_open_sizes(self) -> bool:
        inputs, _ = self.main_types()
        return any("?" in kind for kind in inputs)

    def _walk(self) -> Iterator[Any]:
        return below(self._module.operation)


def _names_shardings(written: bytes) -> bool:
    """Tells whether an artifact or bytecode, where attributes are named by texts, names them."""
    return _SHARDING.encode() in written


def _take_functions(other: Any, module: Any, name: str) -> Any:
    """Copies the functions of a module into another one under new names; gives its main's copy."""
    taken = {symbol_name(o.operation) for o in module.body}
    prefix = next(p for i in itertools.count() if f"{(p := f'{name}_{i}')}_main" not in taken)
    functions = [o.operation for o in other.body.operations]
    for function in functions:
        old = symbol_name(function) or ""
        ir.SymbolTable.replace_all_symbol_uses(old, f"{prefix}_{old}", other.operation)
        ir.SymbolTable.set_symbol_name(function, f"{prefix}_{old}")
        ir.SymbolTable.set_visibility(function, "private")
    copies = [f.clone(ir.InsertionPoint(module.body)) for f in functions]
    for operation in [op for copy in copies for op in below(copy.operation)]:
        if custom_call_target(operation) == "shape_assertion":
            operation.erase()
    wanted = f"{prefix}_main"
    return next(c.operation for c in copies if symbol_name(c.operation) == wanted)


def _with_element(kind: Any, element: str) -> Any:
    tensor = ir.RankedTensorType(kind)
    return ir.RankedTensorType.get(tensor.shape, ir.Type.parse(element), tensor.encoding)


def _convert(value: Any, kind: Any) -> Any:
    return ir.Operation.create("stablehlo.convert", results=[kind], operands=[value])


def _without_sharding(attributes: Any) -> Any:
    kept = attributes_of(ir.DictAttr(attributes))
    kept.pop(_SHARDING, None)
    return ir.DictAttr.get(kept)


def _as_chlo(call: Any) -> None:
    """Puts the CHLO operation that a custom call "mhlo.NAME" stands for in its place."""
    name = custom_call_target(call).removeprefix("mhlo.")
    with ir.InsertionPoint(call):
        operation = ir.Operation.create(
            f"chlo.{'top_k' if name == 'topk' else name}",
            results=[result.type for result in call.results],
            operands=list(call.operands),
            attributes=attributes_of(ir.DictAttr(call.attributes["mhlo.attributes"])),
            loc=call.location,
        )
    replace_operation(call, operation.results)


def _describe(name: str, location: str) -> FoundOperation:
    primitive = _OPERATION_NAME.search(location)
    # The first place is the innermost one, and JAX leaves its own files out.
    source = _SOURCE.search(location)
    return FoundOperation(
        name,
        primitive.group(1).rsplit("/", 1)[-1] if primitive else None,
        f"{source.group(1)}:{source.group(2)}" if source else None,
    )


def _lossy(error: Exception) -> LossyError:
    detail = str(error)
    match = _ILLEGAL_OP.search(detail)
    name = f"stablehlo.{match.group(1)}" if match else "an operation"
    if name == "stablehlo.func":
        name = "the type of an argument or result of a function"
    # The text holds whole functions with their constants: searching through all takes seconds.
    before = detail.partition(": error")[0][-_LONGEST_PLACE:]
    source = re.search(r"(\S+\.\w+):(\d+):\d+$", before)
    place = f"{source.group(1)}:{source.group(2)}" if source else None
    return LossyError(FoundOperation(name, None, place), detail)


def _say_the_same(one: str, other: str) -> bool:
    """Compares texts of modules, of which one may leave attributes out that are at defaults."""
    lines, others = one.splitlines(), other.splitlines()
    return len(lines) == len(others) and all(
        a == b or _without_defaults(a) == _without_defaults(b)
        for a, b in zip(lines, others, strict=True)
    )


def _without_defaults(line: str) -> str:
    return _LEFT_OVER.sub("", _DEFAULT.sub("", line))


def _text(module: Any) -> str:
    return str(
        module.operation.get_asm(
            enable_debug_info=False, large_elements_limit=16, assume_verified=True
        )
    )
