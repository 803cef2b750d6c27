"""Lifts constants of a StableHLO module into arguments of main, and embeds them again."""

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
from jax.interpreters import mlir

from jax2tf_bridge._dtypes import ALL_DTYPES
from jax2tf_bridge.bytecode import read_layout
from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    attributes_of,
    create_value,
    custom_call_target,
    find_main,
    function_type,
    replace_by_operation,
    replace_operation,
    set_function_type,
    symbol_name,
    walk_operations,
)
from jax2tf_bridge.portable import Aval, LiftedConstant

PLACEHOLDER_TARGET = "jax2tf_bridge.constant"
"""Target of the placeholder custom call; its backend_config is the array's number."""

MIN_LIFTED_BYTES = 4096
"""Minimum size in bytes of constants that are taken or lifted."""

# Every TF release that the bridge knows has the dtypes up to this number in types.proto.
_MAX_DTYPE_NUMBER = 25
_LIFTED_DTYPES = {
    row.element_type: row.name
    for row in ALL_DTYPES
    if row.tensorflow is not None and row.tensorflow <= _MAX_DTYPE_NUMBER
}
_LIFTED_NAMES = frozenset(_LIFTED_DTYPES.values())
_ELEMENTS_PER_COMPARISON = 1 << 16

# MLIR's Python bindings offer no buffer for these dtypes.
_WITHOUT_BUFFER = frozenset(row.name for row in ALL_DTYPES if row.in_ml_dtypes)
# MLIR's Python bindings fail even on reading an attribute of these dtypes.
_WITHOUT_ATTRIBUTE = frozenset(row.name for row in ALL_DTYPES if row.kind == "complex")

# Regions of other operations (reduce, sort, ...) may not use outer values.
_CAPTURING = frozenset({"func.func", "stablehlo.while", "stablehlo.case", "stablehlo.if"})

_SYMBOL = re.compile(r'@(?:"([^"]*)"|([\w.$-]+))')

T = TypeVar("T")

Intern: TypeAlias = Callable[[tuple[int, ...], str, memoryview], T]
"""Returns a token for an array, given its shape, dtype and data; equal arrays get equal tokens.

The data is in C order and little-endian, with one byte per bool. It may be freed after the call.
"""


class TakenArrays:
    """Large captured arrays that are kept out of the module while JAX lowers a function.

    JAX would write each array into the module, which is then copied, written and read several
    times. A custom call is a placeholder for the array, until it becomes an argument of main or a
    constant. The arrays are numbered in the order in which they were taken.
    """

    def __init__(self) -> None:
        self._arrays: list[np.ndarray] = []
        # Keyed by id; holding JAX's object keeps its id from being reused.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def take(self, value: Any) -> Any:
        """Creates a placeholder for an array; returns None if JAX should write it as usual."""
        known = self._numbers.get(id(value))
        if known is None:
            array = self._as_large_array(value)
            if array is None:
                return None
            known = self._numbers[id(value)] = (len(self._arrays), value)
            self._arrays.append(array)
        number, _ = known
        array = self._arrays[number]
        kind = ir.RankedTensorType.get(array.shape, mlir.dtype_to_ir_type(array.dtype))
        attributes: dict[str, ir.Attribute] = {
            "call_target_name": ir.StringAttr.get(PLACEHOLDER_TARGET),
            "backend_config": ir.StringAttr.get(str(number)),
        }
        return create_value("stablehlo.custom_call", kind, attributes=attributes)

    def array(self, operation: Any) -> np.ndarray | None:
        """Returns the array of a placeholder; None for other operations."""
        if custom_call_target(operation) != PLACEHOLDER_TARGET:
            return None
        return self._arrays[int(ir.StringAttr(operation.attributes["backend_config"]).value)]

    def _as_large_array(self, value: Any) -> np.ndarray | None:
        # Checked before np.asarray, because copying from another device takes time.
        if isinstance(value, jax.Array) and (
            not value.is_fully_addressable or value.nbytes < MIN_LIFTED_BYTES
        ):
            return None
        array = np.asarray(value)
        if array.nbytes < MIN_LIFTED_BYTES:
            return None
        # JAX writes arrays that repeat values as broadcasts.
        if array.dtype.name not in _LIFTED_NAMES or 0 in array.strides:
            return None
        if jax.dtypes.canonicalize_dtype(array.dtype) != array.dtype or _is_one_value(array):
            return None
        return array


def _is_one_value(array: np.ndarray) -> bool:
    flat = array.reshape(-1)
    width = flat.dtype.itemsize
    for start in range(0, len(flat), _ELEMENTS_PER_COMPARISON):
        rows = flat[start : start + _ELEMENTS_PER_COMPARISON].view(np.uint8).reshape(-1, width)
        if (rows != flat[:1].view(np.uint8)).any():
            return False
    return True


@dataclass(frozen=True)
class _LargeConstant:
    """Constant of a function; `taken` is the array if it was kept out of the module."""

    operation: Any
    shape: tuple[int, ...]
    dtype: str
    taken: np.ndarray | None = None


@dataclass(frozen=True)
class _LiftableCall:
    """A func.call whose caller can pass additional operands."""

    operation: Any
    callee: str


class _ModuleFunction:
    """A function of the module.

    Attributes:
      operation: the func.func.
      contents: its large constants, and its calls that can pass more operands, in order.
      fixed: the functions that it uses in other ways. They cannot get more arguments.
    """

    def __init__(self, operation: Any, taken: TakenArrays) -> None:
        self.operation = operation
        self.contents: list[_LargeConstant | _LiftableCall] = []
        self.fixed: set[str] = set()
        for op, captures in _walk_with_captures(operation):
            name = op.name
            if name == "func.call":
                callee = str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value)
                if captures:
                    self.contents.append(_LiftableCall(op, callee))
                else:
                    self.fixed.add(callee)
            elif name == "stablehlo.constant" or taken.array(op) is not None:
                constant = _describe_large(op, taken.array(op))
                if constant is not None and _can_be_argument(op):
                    self.contents.append(constant)
            elif name in ("stablehlo.custom_call", "stablehlo.composite") or not (
                name.startswith(("stablehlo.", "func."))
            ):
                self.fixed |= _find_symbols(op)

    @property
    def callees(self) -> set[str]:
        return {part.callee for part in self.contents if isinstance(part, _LiftableCall)}


def lift(
    module: Any,
    intern: Intern[T],
    *,
    taken: TakenArrays | None = None,
    share: Intern[T] | None = None,
) -> list[T]:
    """Turns the large constants of a module into trailing arguments of main.

    These constants stay in the module: small ones, those that repeat one value, those of dtypes
    that some TF releases lack, and those in regions that may not use outer values.

    Args:
      module: an ir.Module; its context must be the current one.
      intern: returns a hashable token for an array. Constants with equal tokens become one
        argument.
      taken: arrays that were kept out of the module; those that are not lifted return to it.
      share: like `intern`, for the taken arrays, whose memory stays alive.

    Returns:
      The token of each new argument, in the order of their first use in main.
    """
    taken = taken or TakenArrays()
    functions = {
        symbol_name(op.operation) or "": _ModuleFunction(op.operation, taken)
        for op in module.body.operations
        if op.operation.name == "func.func"
    }
    lifted = _Lifting(functions, intern, share or intern).lift("main")
    put_back(module, taken)
    return list(lifted)


def may_be_large(operation: Any) -> bool:
    """Returns whether `lift` or `put_back` may replace an operation."""
    if operation.name == "stablehlo.constant":
        return _describe_large(operation, None) is not None
    return custom_call_target(operation) == PLACEHOLDER_TARGET


def put_back(module: Any, taken: TakenArrays) -> None:
    """Replaces the remaining placeholder calls by constants that hold their arrays."""
    for op in list(walk_operations(module.operation)):
        array = taken.array(op)
        if array is not None:
            with ir.Location.unknown(), ir.InsertionPoint(op):
                constant = _create_constant(op.results[0].type, _view_bytes(array))
            replace_operation(op, [constant])


def embed(module: Any, arrays: Sequence[bytes | memoryview]) -> None:
    """Turns the last arguments of main into constants: the inverse of `lift`.

    `arrays` have the form that `Intern` takes. The MLIR context must be the current one.
    """
    main = find_main(module)
    block = main.regions[0].blocks[0]
    first = len(block.arguments) - len(arrays)
    with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
        for argument, data in zip(list(block.arguments)[first:], arrays, strict=True):
            argument.replace_all_uses_with(_create_constant(argument.type, data))
    for i in reversed(range(first, first + len(arrays))):
        block.erase_argument(i)
    attributes = attribute(main, "arg_attrs")
    if attributes is not None:
        main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(attributes)[:first])
    _update_type(main)


class _Lifting(Generic[T]):
    """Replaces constants by function arguments, callees first."""

    def __init__(
        self, functions: Mapping[str, _ModuleFunction], intern: Intern[T], share: Intern[T]
    ) -> None:
        self._functions, self._intern, self._share = functions, intern, share
        # Keyed by the id of the array.
        self._by_array: dict[int, T] = {}
        self._fixed = _find_fixed(functions)
        self._types: dict[T, Any] = {}
        # MLIR uniques attributes, so equal constants share one key.
        self._by_attribute: dict[Any, T | None] = {}
        self._done: dict[str, tuple[T, ...]] = {}

    def lift(self, name: str) -> tuple[T, ...]:
        """Lifts the constants of a function; returns the tokens of its new arguments."""
        if name in self._fixed:
            return ()
        if name not in self._done:
            self._done[name] = self._lift_function(self._functions[name])
        return self._done[name]

    def _lift_function(self, function: _ModuleFunction) -> tuple[T, ...]:
        needed: dict[T, None] = {}
        constants: list[tuple[Any, T]] = []
        calls: list[tuple[Any, tuple[T, ...]]] = []
        for part in function.contents:
            if isinstance(part, _LiftableCall):
                callee_tokens = self.lift(part.callee)
                if callee_tokens:
                    calls.append((part.operation, callee_tokens))
                    needed.update(dict.fromkeys(callee_tokens))
                continue
            token = self._find_token(part)
            if token is not None:
                constants.append((part.operation, token))
                needed[token] = None
                self._types.setdefault(token, part.operation.results[0].type)
        if needed:
            arguments = self._add_arguments(function.operation, tuple(needed))
            for operation, token in constants:
                operation.results[0].replace_all_uses_with(arguments[token])
                operation.erase()
            for call, tokens in calls:
                _add_operands(call, [arguments[token] for token in tokens])
        return tuple(needed)

    def _find_token(self, constant: _LargeConstant) -> T | None:
        """Returns the token of a constant; None if it has to stay."""
        shape, dtype, operation = constant.shape, constant.dtype, constant.operation
        taken = constant.taken
        if taken is not None:
            if id(taken) not in self._by_array:
                self._by_array[id(taken)] = self._share(shape, dtype, _view_bytes(taken))
            return self._by_array[id(taken)]
        if dtype in _WITHOUT_ATTRIBUTE:
            data = _read_from_bytecode(constant)
            return None if data is None else self._intern(shape, dtype, data)
        value: Any = operation.attributes["value"]
        if value not in self._by_attribute:
            data = None
            if isinstance(value, ir.DenseElementsAttr) and not value.is_splat:
                if dtype in _WITHOUT_BUFFER:
                    data = _read_from_bytecode(constant)
                else:
                    data = _view_bytes(np.asarray(value))
            token = None if data is None else self._intern(shape, dtype, data)
            self._by_attribute[value] = token
        return self._by_attribute[value]

    def _add_arguments(self, function: Any, tokens: Sequence[T]) -> dict[T, Any]:
        """Appends an argument for each token to a function; maps the tokens to the arguments."""
        block = function.regions[0].blocks[0]
        unknown = ir.Location.unknown()
        added = {token: block.add_argument(self._types[token], unknown) for token in tokens}
        _extend_argument_attributes(function, len(tokens))
        _update_type(function)
        return added


def _find_fixed(functions: Mapping[str, _ModuleFunction]) -> set[str]:
    reached = _find_reachable({"main"}, functions)
    unused = functions.keys() - reached
    used_otherwise = set[str]().union(*(f.fixed for f in functions.values()))
    # Functions that a fixed function calls cannot receive lifted arrays either.
    return _find_reachable(unused | (used_otherwise & functions.keys()), functions)


def _find_reachable(names: set[str], functions: Mapping[str, _ModuleFunction]) -> set[str]:
    reached: set[str] = set()
    pending = set(names)
    while pending:
        name = pending.pop()
        reached.add(name)
        pending |= functions[name].callees - reached
    return reached


def _walk_with_captures(function: Any) -> Iterator[tuple[Any, bool]]:
    """Yields each operation of a function, and whether it may use values of outer regions."""
    stack = [(function, True)]
    while stack:
        op, captures = stack.pop()
        yield op, captures
        inner = captures and op.name in _CAPTURING
        below = [(o.operation, inner) for region in op.regions for block in region for o in block]
        stack.extend(reversed(below))


def _can_be_argument(constant: Any) -> bool:
    """Returns whether all users of a constant may use a function argument instead.

    Users are checked because MLIR hoists constants out of the regions that use them.
    """
    for use in constant.results[0].uses:
        parent = use.owner.operation.parent.operation
        while parent.name in _CAPTURING and parent.name != "func.func":
            parent = parent.parent.operation
        if parent.name != "func.func":
            return False
    return True


def _describe_large(operation: Any, taken: np.ndarray | None) -> _LargeConstant | None:
    kind = ir.RankedTensorType(operation.results[0].type)
    shape = tuple(kind.shape)
    if math.prod(shape) * 16 < MIN_LIFTED_BYTES:
        return None
    dtype = _LIFTED_DTYPES.get(str(kind.element_type))
    if dtype is None or math.prod(shape) * jax.numpy.dtype(dtype).itemsize < MIN_LIFTED_BYTES:
        return None
    return _LargeConstant(operation, shape, dtype, taken)


def _find_symbols(operation: Any) -> set[str]:
    texts = map(str, attributes_of(operation).values())
    return {a or b for text in texts for a, b in _SYMBOL.findall(text)}


def _view_bytes(array: np.ndarray) -> memoryview:
    """Returns the elements in the form that `Intern` takes; copies only if not in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _read_from_bytecode(constant: _LargeConstant) -> memoryview | None:
    """Reads a constant without buffer from its bytecode; None if it repeats one value."""
    operation = constant.operation
    module = ir.Module.create(ir.Location.unknown())
    operation.clone(ir.InsertionPoint(module.body))
    view = memoryview(_jax_compat.write_bytecode(module))
    entries = read_layout(view).attributes
    # The constant is the longest entry; its type and all others are short.
    cursor = max((entries[i].cursor for i in range(len(entries))), key=lambda c: c.left)
    size = math.prod(constant.shape) * jax.numpy.dtype(constant.dtype).itemsize
    if cursor.left < size:
        return None
    cursor.varint()  # the index of the type
    if cursor.count("bytes") != size or cursor.left != size:
        cursor.fail(f"a constant has {cursor.left} bytes where {size} were expected")
    return view[cursor.at : cursor.end]


def _create_constant(kind: Any, data: bytes | memoryview) -> Any:
    array: Any = np.frombuffer(data, np.uint8)
    tensor = ir.RankedTensorType(kind)
    element, shape = tensor.element_type, list(tensor.shape)
    try:
        value = ir.DenseElementsAttr.get(array, type=element, shape=shape)
    except ValueError:
        if str(element) != "i1":
            raise
        packed: Any = np.packbits(array, bitorder="little")  # JAX 0.8 expects 8 bools in a byte
        value = ir.DenseElementsAttr.get(packed, type=element, shape=shape)
    return create_value("stablehlo.constant", kind, attributes={"value": value})


def _add_operands(call: Any, operands: Sequence[Any]) -> None:
    all_operands = [*call.operands, *operands]
    new_call = replace_by_operation(call, "func.call", all_operands, attributes_of(call))
    _extend_argument_attributes(new_call, len(operands))


def _extend_argument_attributes(operation: Any, count: int) -> None:
    dictionaries = attribute(operation, "arg_attrs")
    if dictionaries is not None:
        empty = [ir.DictAttr.get({})] * count
        operation.attributes["arg_attrs"] = ir.ArrayAttr.get([*dictionaries, *empty])


def _update_type(function: Any) -> None:
    inputs = [argument.type for argument in function.regions[0].blocks[0].arguments]
    set_function_type(function, inputs, function_type(function).results)


class ConstantPool:
    """A thread-safe pool of lifted arrays, shared by a function and its VJPs."""

    def __init__(self, *, shares_memory: bool = False) -> None:
        """Creates an empty pool.

        Args:
          shares_memory: whether constants are views of the arrays that a function captured. Such
            arrays must not change, and the constants cannot be pickled, so the function must stay
            internal.
        """
        self._shares_memory = shares_memory
        self._known: dict[tuple[Aval, str], LiftedConstant] = {}
        self._data: dict[str, bytes | memoryview] = {}
        self._by_address: dict[tuple[int, Aval], LiftedConstant] = {}
        self._lock = threading.Lock()

    def intern(self, shape: tuple[int, ...], dtype: str, data: memoryview) -> LiftedConstant:
        """Returns the constant with this type and content; copies `data` if it is new."""
        return self._intern_with(Aval(shape, dtype), data, bytes)

    def share(self, shape: tuple[int, ...], dtype: str, data: memoryview) -> LiftedConstant:
        """Returns the constant with this type and content; a view of `data` if memory is shared."""
        aval = Aval(shape, dtype)
        if not self._shares_memory:
            return self._intern_with(aval, data, bytes)
        address = (np.frombuffer(data, np.uint8).ctypes.data, aval)
        with self._lock:
            known = self._by_address.get(address)
        if known is None:
            # The view keeps the memory alive, so its address stays valid as a key.
            known = self._intern_with(aval, data, lambda view: view)
            with self._lock:
                if known.data is data:
                    self._by_address[address] = known
        return known

    def _intern_with(
        self, aval: Aval, data: memoryview, convert: Callable[[memoryview], bytes | memoryview]
    ) -> LiftedConstant:
        digest = hashlib.sha256(data).hexdigest()
        with self._lock:
            known = self._known.get((aval, digest))
            if known is None:
                name = f"constant_{len(self._known)}"
                if digest not in self._data:
                    self._data[digest] = convert(data)
                known = LiftedConstant(aval, digest, name, self._data[digest])
                self._known[aval, digest] = known
        return known
