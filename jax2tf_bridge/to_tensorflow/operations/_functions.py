"""Calls of the module's functions, tuples, and tokens, which only order effects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from jax2tf_bridge.bytecode import Operation, OtherType, Value
from jax2tf_bridge.to_tensorflow.operations._array import Array
from jax2tf_bridge.to_tensorflow.operations._scope import Emitter, Inlined, Scope

TOKEN = Array("token", ())
"""Value of all tokens: TensorFlow orders operations by inputs, and effects are rejected."""


def is_token(value: Value) -> bool:
    """Returns whether a value is a token."""
    return isinstance(value.type, OtherType) and value.type.text == "!stablehlo.token"


def _call(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Inlined:
    return inlined(scope, operation, operation.text("callee"), operands)


def inlined(scope: Scope, operation: Operation, name: str, operands: Sequence[Array]) -> Inlined:
    """Returns a function of the module, to inline in place of the call."""
    function = scope.program.functions.get(name)
    if function is None:
        scope.fail(operation, f"the module has no function {name!r}")
    return Inlined(scope.called(), function.body, operands)


def decomposed(scope: Scope, operation: Operation) -> Inlined:
    """Returns the decomposition of a composite, for operands without another form."""
    operands = [scope.array(value) for value in operation.operands]
    return inlined(scope, operation, operation.text("decomposition"), operands)


def call(
    scope: Scope, operation: Operation, name: str, operands: Sequence[Array]
) -> Sequence[Array]:
    """Calls a function of the module immediately, for an emitter that needs its results."""
    result = inlined(scope, operation, name, operands)
    return result.scope.run(result.block, result.arguments)


def _same(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    return operands


def _token(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    return TOKEN


@dataclass(frozen=True, eq=False)
class _Tuple(Array):
    """Tuple of arrays."""

    items: tuple[Array, ...] = ()


def _tuple(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    return _Tuple("tuple", (), items=tuple(operands))


def _tuple_element(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (whole,) = operands
    if not isinstance(whole, _Tuple):
        scope.fail(operation, "its operand was not made by stablehlo.tuple")
    return whole.items[operation.int("index")]


EMITTERS: Mapping[str, Emitter] = MappingProxyType(
    {
        "call": _call,
        "optimization_barrier": _same,
        "create_token": _token,
        "after_all": _token,
        "tuple": _tuple,
        "get_tuple_element": _tuple_element,
    }
)
