"""Calls of the module's functions, tuples, and tokens, which only order effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jax2tf_bridge.bytecode import Operation, OtherType, Value
from jax2tf_bridge.emitters._array import Array
from jax2tf_bridge.emitters._emitter import emits
from jax2tf_bridge.emitters._scope import Scope

TOKEN = Array("token", ())
"""Value of all tokens: TensorFlow orders operations by inputs, and effects are rejected."""


def is_token(value: Value) -> bool:
    """Returns whether a value is a token."""
    return isinstance(value.type, OtherType) and value.type.text == "!stablehlo.token"


@emits("call")
def _call(scope: Scope, operation: Operation, operands: Sequence[Array]) -> list[Array]:
    return call(scope, operation, operation.text("callee"), operands)


def decompose(scope: Scope, operation: Operation) -> list[Array]:
    """Converts the decomposition of a composite, for operands without another form."""
    operands = [scope.array(value) for value in operation.operands]
    return call(scope, operation, operation.text("decomposition"), operands)


def call(scope: Scope, operation: Operation, name: str, operands: Sequence[Array]) -> list[Array]:
    """Converts a function of the module in place of an operation."""
    function = scope.program.functions.get(name)
    if function is None:
        scope.fail(operation, f"the module has no function {name!r}")
    n_taken = len(function.body.arguments)
    if len(operands) != n_taken:
        scope.fail(operation, f"it gives {len(operands)} values for {n_taken}")
    if name in scope.callers:
        scope.fail(operation, "the module's functions call each other without an end")
    return scope.new_call(name, operation).run(function.body, operands)


@emits(
    "Sharding",
    "annotate_device_placement",
    "optimization_barrier",
    "xla.sdy.FuncResultSharding",
)
def _same(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Sequence[Array]:
    return operands


@emits("create_token", "after_all")
def _token(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    return TOKEN


@dataclass(frozen=True, eq=False)
class _Tuple(Array):
    """Tuple of arrays."""

    items: tuple[Array, ...] = ()


@emits("tuple")
def _tuple(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    return _Tuple("tuple", (), items=tuple(operands))


@emits("get_tuple_element")
def _tuple_element(scope: Scope, operation: Operation, operands: Sequence[Array]) -> Array:
    (whole,) = operands
    if not isinstance(whole, _Tuple):
        scope.fail(operation, "its operand was not made by stablehlo.tuple")
    return whole.items[operation.int("index")]
