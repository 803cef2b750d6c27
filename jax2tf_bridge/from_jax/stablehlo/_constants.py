"""Constants of a StableHLO module in memory: made arguments of main, and constants again."""

from __future__ import annotations

import hashlib
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

import jax
import numpy as np

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    custom_call_target,
    function_type,
    main_of,
    replace_operation,
    set_function_type,
    symbol_name,
)
from jax2tf_bridge.from_jax.stablehlo._taken_arrays import (
    CONSTANT,
    LEAST_BYTES,
    LIFTED_DTYPES,
    TakenArrays,
)
from jax2tf_bridge.portable._aval import Aval, LiftedConstant
from jax2tf_bridge.portable._dtypes import ALL_DTYPES
from jax2tf_bridge.portable.bytecode._layout import read_layout

# MLIR's Python bindings give no buffer for these.
_WITHOUT_BUFFER = frozenset(row.name for row in ALL_DTYPES if row.in_ml_dtypes)
# They fail even on asking for the attribute.
_WITHOUT_ATTRIBUTE = frozenset(row.name for row in ALL_DTYPES if row.kind == "complex")

# In the regions of other operations (reduce, sort, ...) StableHLO allows no value from outside.
_CAPTURING = frozenset({"func.func", "stablehlo.while", "stablehlo.case", "stablehlo.if"})

_SYMBOL = re.compile(r'@(?:"([^"]*)"|([\w.$-]+))')

T = TypeVar("T")


Intern: TypeAlias = Callable[[tuple[int, ...], str, memoryview], T]
"""Gives what stands for an array of a shape and dtype: the same for equal ones.

The data (C order, little-endian, a byte each for bool) may be gone when it returns.
"""


@dataclass(frozen=True)
class _Constant:
    """A large constant of a function."""

    operation: Any
    shape: tuple[int, ...]
    dtype: str
    taken: np.ndarray | None = None
    """Its array, where that is not in the module."""


@dataclass(frozen=True)
class _Call:
    """A call of a function where values from outside may be handed over."""

    operation: Any
    callee: str


class _Function:
    """A function of the module.

    Attributes:
      operation: the func.func.
      contents: its large constants and its calls, in order.
      fixed: the functions that it uses otherwise than by calls which can get more operands.
    """

    def __init__(self, operation: Any, taken: TakenArrays) -> None:
        self.operation = operation
        self.contents: list[_Constant | _Call] = []
        self.fixed: set[str] = set()
        for op, captures in _with_capturing(operation):
            name = op.name
            if name == "func.call":
                callee = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
                if captures:
                    self.contents.append(_Call(op, callee))
                else:
                    self.fixed.add(callee)
            elif name == "stablehlo.constant" or taken.array(op) is not None:
                constant = _large(op, taken.array(op))
                if constant is not None and _may_come_from_outside(op):
                    self.contents.append(constant)
            elif name in ("stablehlo.custom_call", "stablehlo.composite") or not (
                name.startswith(("stablehlo.", "func."))
            ):
                self.fixed |= _symbols(op)

    @property
    def callees(self) -> set[str]:
        return {part.callee for part in self.contents if isinstance(part, _Call)}


def lift(
    module: Any,
    intern: Intern[T],
    *,
    taken: TakenArrays | None = None,
    share: Intern[T] | None = None,
) -> list[T]:
    """Makes the large constants of a module arguments of main, after those that it has.

    Constants of one repeated value stay, as do small ones, those of dtypes that not every TF has,
    and those where StableHLO allows no value from outside.

    Args:
      module: an ir.Module; its context is the current one.
      intern: what stands for an array; hashable. Those for which it is the same become one
        argument.
      taken: arrays that are not in the module; those that stay are put into it.
      share: as `intern`, for these: their memory stays.

    Returns:
      What stands for each new argument, in the order in which main needs them first.
    """
    taken = taken or TakenArrays()
    functions = {
        symbol_name(op.operation) or "": _Function(op.operation, taken)
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    lifted: list[T] = []
    if any(isinstance(part, _Constant) for f in functions.values() for part in f.contents):
        lifting = _Lifting(functions, intern, share or intern)
        lifted = list(lifting.of("main"))
    put_back(module, taken)
    return lifted


def may_be_large(operation: Any) -> bool:
    """Tells whether a constant, or what a call stands for, concerns `lift` or `put_back`."""
    if operation.name == "stablehlo.constant":
        return _large(operation, None) is not None
    return custom_call_target(operation) == CONSTANT


def put_back(module: Any, taken: TakenArrays) -> None:
    """Makes constants of all taken arrays that a module still has calls for."""
    for function in module.body.operations:
        for op, _ in list(_with_capturing(function.operation)):
            array = taken.array(op)
            if array is not None:
                with ir.Location.unknown(), ir.InsertionPoint(op):
                    value = _dense(ir.RankedTensorType(op.results[0].type), _bytes_of(array))
                    constant = ir.Operation.create(
                        "stablehlo.constant",
                        results=[op.results[0].type],
                        attributes={"value": value},
                    )
                replace_operation(op, constant.results)


def embed(module: Any, arrays: Sequence[bytes | memoryview]) -> None:
    """Makes the last arguments of main constants: the inverse of `lift`.

    Args:
      module: an ir.Module; its context is the current one.
      arrays: the data of these arguments, as `lift` has it.
    """
    main = main_of(module)
    block = main.regions[0].blocks[0]
    first = len(block.arguments) - len(arrays)
    with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        for argument, data in zip(list(block.arguments)[first:], arrays, strict=True):
            constant = ir.Operation.create(
                "stablehlo.constant",
                results=[argument.type],
                attributes={"value": _dense(ir.RankedTensorType(argument.type), data)},
            )
            argument.replace_all_uses_with(constant.results[0])
    for i in reversed(range(first, first + len(arrays))):
        block.erase_argument(i)
    attributes = attribute(main, "arg_attrs")
    if attributes is not None:
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(attributes)[:first])
    _retype(main)


class _Lifting(Generic[T]):
    """Hands the constants of functions over to them, callees first."""

    def __init__(
        self, functions: Mapping[str, _Function], intern: Intern[T], share: Intern[T]
    ) -> None:
        self._functions, self._intern, self._share = functions, intern, share
        # By the identity of the array.
        self._by_array: dict[int, T] = {}
        self._fixed = _fixed(functions)
        self._types: dict[T, Any] = {}
        # MLIR has equal attributes once.
        self._by_attribute: dict[Any, T | None] = {}
        self._done: dict[str, tuple[T, ...]] = {}

    def of(self, name: str) -> tuple[T, ...]:
        """Returns what stands for the arguments that the function has got."""
        if name in self._fixed:
            return ()
        if name not in self._done:
            self._done[name] = self._lifted(self._functions[name])
        return self._done[name]

    def _lifted(self, function: _Function) -> tuple[T, ...]:
        needed: dict[T, None] = {}
        constants: list[tuple[Any, T]] = []
        calls: list[tuple[Any, tuple[T, ...]]] = []
        for part in function.contents:
            if isinstance(part, _Call):
                of_callee = self.of(part.callee)
                if of_callee:
                    calls.append((part.operation, of_callee))
                    needed.update(dict.fromkeys(of_callee))
                continue
            array = self._array(part)
            if array is not None:
                constants.append((part.operation, array))
                needed[array] = None
                self._types.setdefault(array, part.operation.results[0].type)
        if needed:
            arguments = self._with_arguments(function.operation, tuple(needed))
            for operation, array in constants:
                operation.results[0].replace_all_uses_with(arguments[array])
                operation.erase()
            for call, arrays in calls:
                _with_operands(call, [arguments[array] for array in arrays])
        return tuple(needed)

    def _array(self, constant: _Constant) -> T | None:
        """Returns what stands for the constant; None if it has to stay."""
        shape, dtype, operation = constant.shape, constant.dtype, constant.operation
        taken = constant.taken
        if taken is not None:
            if id(taken) not in self._by_array:
                self._by_array[id(taken)] = self._share(shape, dtype, _bytes_of(taken))
            return self._by_array[id(taken)]
        if dtype in _WITHOUT_ATTRIBUTE:
            data = _data_in_bytecode(constant)
            return None if data is None else self._intern(shape, dtype, data)
        value = operation.attributes["value"]
        if value not in self._by_attribute:
            self._by_attribute[value] = None
            if isinstance(value, ir.DenseElementsAttr) and not value.is_splat:
                if dtype in _WITHOUT_BUFFER:
                    data = _data_in_bytecode(constant)
                else:
                    data = _data_in_buffer(value)
                if data is not None:
                    self._by_attribute[value] = self._intern(shape, dtype, data)
        return self._by_attribute[value]

    def _with_arguments(self, function: Any, arrays: Sequence[T]) -> dict[T, Any]:
        """Gives a function an argument for each of the arrays."""
        block = function.regions[0].blocks[0]
        unknown = ir.Location.unknown()
        added = {array: block.add_argument(self._types[array], unknown) for array in arrays}
        _extend(function, "arg_attrs", len(arrays))
        _retype(function)
        return added


def _fixed(functions: Mapping[str, _Function]) -> set[str]:
    """Finds the functions whose arguments have to stay as they are."""
    reached = _reached({"main"}, functions)
    unused = functions.keys() - reached
    used_otherwise = set[str]().union(*(f.fixed for f in functions.values()))
    # What one of these calls cannot get an array from it.
    return _reached(unused | (used_otherwise & functions.keys()), functions)


def _reached(names: set[str], functions: Mapping[str, _Function]) -> set[str]:
    reached: set[str] = set()
    ahead = set(names)
    while ahead:
        name = ahead.pop()
        reached.add(name)
        ahead |= functions[name].callees - reached
    return reached


def _with_capturing(function: Any) -> Iterator[tuple[Any, bool]]:
    """Yields a function and all operations in it, and whether each may use what is outside."""
    stack = [(function, True)]
    while stack:
        op, captures = stack.pop()
        yield op, captures
        inner = captures and op.name in _CAPTURING
        below = [(o.operation, inner) for region in op.regions for block in region for o in block]
        stack.extend(reversed(below))


def _may_come_from_outside(constant: Any) -> bool:
    """Tells whether what uses the constant may use an argument of the function.

    MLIR moves constants out of the regions that they are used in.
    """
    for use in constant.results[0].uses:
        parent = use.owner.operation.parent.operation
        while parent.name in _CAPTURING and parent.name != "func.func":
            parent = parent.parent.operation
        if parent.name != "func.func":
            return False
    return True


def _large(operation: Any, taken: np.ndarray | None) -> _Constant | None:
    """Describes a constant that is large enough to be lifted, and not one repeated value."""
    kind = ir.RankedTensorType(operation.results[0].type)
    shape = tuple(kind.shape)
    if math.prod(shape) * 16 < LEAST_BYTES:
        return None
    dtype = LIFTED_DTYPES.get(str(kind.element_type))
    if dtype is None or math.prod(shape) * jax.numpy.dtype(dtype).itemsize < LEAST_BYTES:
        return None
    return _Constant(operation, shape, dtype, taken)


def _symbols(operation: Any) -> set[str]:
    texts = map(str, attributes_of(operation).values())
    return {a or b for text in texts for a, b in _SYMBOL.findall(text)}


def _bytes_of(array: np.ndarray) -> memoryview:
    """Returns the elements as `Intern` takes them; a view of an array in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _data_in_buffer(value: Any) -> memoryview:
    """Views the data of an attribute, without a copy."""
    return np.asarray(memoryview(value)).reshape(-1).view(np.uint8).data


def _data_in_bytecode(constant: _Constant) -> memoryview | None:
    """Reads a constant of which there is no buffer; None if it is one repeated value."""
    operation = constant.operation
    module = ir.Module.create(ir.Location.unknown())
    operation.clone(ir.InsertionPoint(module.body))
    view = memoryview(_jax_compat.module_bytecode(module))
    entries = read_layout(view).attributes
    # The type and all others are short.
    cursor = max((entries[i].cursor for i in range(len(entries))), key=lambda c: c.left)
    size = math.prod(constant.shape) * jax.numpy.dtype(constant.dtype).itemsize
    if cursor.left < size:
        return None
    cursor.varint()  # the index of the type
    if cursor.count("bytes") != size or cursor.left != size:
        cursor.fail(f"a constant has {cursor.left} bytes where {size} were expected")
    return view[cursor.at : cursor.end]


def _dense(kind: Any, data: bytes | memoryview) -> Any:
    array: Any = np.frombuffer(data, np.uint8)
    element, shape = kind.element_type, list(kind.shape)
    if str(element) == "i1":
        try:
            return ir.DenseElementsAttr.get(array, type=element, shape=shape)
        except ValueError:  # JAX 0.8, which takes 8 of them in a byte
            array = np.packbits(array, bitorder="little")
    return ir.DenseElementsAttr.get(array, type=element, shape=shape)


def _with_operands(call: Any, operands: Sequence[Any]) -> None:
    """Puts a call with further operands in the place of a func.call."""
    with ir.InsertionPoint(call):
        longer = ir.Operation.create(
            "func.call",
            results=[result.type for result in call.results],
            operands=[*call.operands, *operands],
            attributes=attributes_of(call),
            loc=call.location,
        )
    _extend(longer, "arg_attrs", len(operands))
    replace_operation(call, longer.results)


def _extend(operation: Any, name: str, count: int) -> None:
    """Adds empty attributes of arguments, where those that are there have some."""
    each = attribute(operation, name)
    if each is not None:
        empty = [ir.DictAttr.get({})] * count
        operation.attributes[name] = ir.ArrayAttr.get([*each, *empty])


def _retype(function: Any) -> None:
    """Makes a function's type that of the arguments that it has."""
    inputs = [argument.type for argument in function.regions[0].blocks[0].arguments]
    set_function_type(function, inputs, function_type(function).results)


class ConstantPool:
    """Arrays that were lifted, each once: a function and its VJPs share them.

    Safe to use from several threads.
    """

    def __init__(self, *, shares_memory: bool = False) -> None:
        """Makes an empty one.

        Args:
          shares_memory: whether constants are views of the arrays that a function captured. They
            must not change then, and cannot be pickled: for functions that nobody else gets.
        """
        self._shares_memory = shares_memory
        self._known: dict[tuple[Aval, str], LiftedConstant] = {}
        self._data: dict[str, bytes | memoryview] = {}
        self._by_place: dict[tuple[int, Aval], LiftedConstant] = {}
        self._lock = threading.Lock()

    def intern(self, shape: tuple[int, ...], dtype: str, data: memoryview) -> LiftedConstant:
        """Returns the constant of this type and content; `data` is copied if it is new."""
        return self._interned(Aval(shape, dtype), data, bytes)

    def share(self, shape: tuple[int, ...], dtype: str, data: memoryview) -> LiftedConstant:
        """Returns the constant of this type and content; `data` lives on where it is shared."""
        aval = Aval(shape, dtype)
        if not self._shares_memory:
            return self._interned(aval, data, bytes)
        place = (np.frombuffer(data, np.uint8).ctypes.data, aval)
        with self._lock:
            known = self._by_place.get(place)
        if known is None:
            # The view keeps the memory, and with it the place.
            known = self._interned(aval, data, lambda view: view)
            with self._lock:
                if known.data is data:
                    self._by_place[place] = known
        return known

    def _interned(
        self, aval: Aval, data: memoryview, kept: Callable[[memoryview], bytes | memoryview]
    ) -> LiftedConstant:
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            known = self._known.get((aval, digest))
            if known is None:
                name = f"constant_{len(self._known)}"
                if digest not in self._data:
                    self._data[digest] = kept(data)
                known = LiftedConstant(aval, digest, name, self._data[digest])
                self._known[aval, digest] = known
        return known
