"""Helpers for MLIR operations in memory: walking, reading attributes, replacing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from jax2tf_bridge.from_jax._jax_compat import ir


def walk_operations(operation: Any) -> Iterator[Any]:
    """Yields an operation and all nested operations, in order."""
    stack = [operation]
    while stack:
        op = stack.pop()
        yield op
        inner = [o.operation for region in op.regions for block in region for o in block]
        stack.extend(reversed(inner))


def attribute(operation: Any, name: str) -> Any:
    """Returns an attribute of an operation, or None."""
    attributes = operation.attributes
    return attributes[name] if name in attributes else None  # noqa: SIM401 - it has no get


def attributes_of(holder: Any) -> dict[str, Any]:
    """Returns the attributes of an operation, or of a DictAttr, by name.

    Omits complex constants, because jaxlib has no Python object for them.
    """
    attributes = holder if isinstance(holder, ir.DictAttr) else holder.attributes
    # Indexed, because iterating yields names in some releases of jaxlib.
    names = [str(attributes[i].name) for i in range(len(attributes))]
    readable = {}
    for name in names:
        # NamedAttribute.attr would end the process: it throws from a `noexcept` C++ function.
        with contextlib.suppress(TypeError):
            readable[name] = attributes[name]
    return readable


def function_type(function: Any) -> Any:
    """Returns the type of a func.func."""
    return ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)


def drop_empty_attributes(function: Any) -> None:
    """Removes arg_attrs and res_attrs of a func.func if all their dictionaries are empty."""
    for name in ("arg_attrs", "res_attrs"):
        dictionaries = attribute(function, name)
        if dictionaries is not None and not any(len(ir.DictAttr(d)) for d in dictionaries):
            del function.attributes[name]


def symbol_name(operation: Any) -> str | None:
    """Returns the symbol name of an operation, or None."""
    name = attribute(operation, "sym_name")
    return None if name is None else str(ir.StringAttr(name).value)


def set_function_type(function: Any, inputs: Iterable[Any], results: Iterable[Any]) -> None:
    """Changes the type of a func.func."""
    changed = ir.FunctionType.get(list(inputs), list(results))
    function.attributes["function_type"] = ir.TypeAttr.get(changed)


def custom_call_target(operation: Any) -> str:
    """Returns the target of a stablehlo.custom_call; "" for other operations."""
    if operation.name != "stablehlo.custom_call":
        return ""
    return str(ir.StringAttr(operation.attributes["call_target_name"]).value)


def replace_operation(operation: Any, values: Iterable[Any]) -> None:
    """Replaces the results of an operation by `values`, and erases it."""
    for old, new in zip(operation.results, values, strict=True):
        old.replace_all_uses_with(new)
    operation.erase()


def replace_by_operation(
    operation: Any, name: str, operands: Iterable[Any], attributes: dict[str, Any]
) -> Any:
    """Replaces an operation by a new one with the same result types; returns the new one."""
    with operation.context, ir.InsertionPoint(operation):
        new = ir.Operation.create(
            name,
            results=[result.type for result in operation.results],
            operands=list(operands),
            attributes=attributes,
            loc=operation.location,
        )
    replace_operation(operation, new.results)
    return new


def find_main(module: Any) -> Any:
    """Returns the function main of a module that JAX exported."""
    for op in module.body.operations:
        if symbol_name(op.operation) == "main":
            return op.operation
    raise AssertionError("JAX exported a module without main")


def make_int_attribute(value: int, width: int = 64) -> ir.IntegerAttr:
    """Makes an attribute with a signless integer of `width` bits."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(width), value)


def create_value(
    name: str, mlir_type: Any, operands: Sequence[Any] = (), attributes: Any = None
) -> Any:
    """Creates an operation at the current insertion point; returns its only result."""
    operation = ir.Operation.create(
        name, results=[mlir_type], operands=list(operands), attributes=attributes
    )
    return operation.results[0]


def create_zeros(mlir_type: Any) -> Any:
    """Creates zeros of a statically shaped tensor type at the current insertion point."""
    tensor = ir.RankedTensorType(mlir_type)
    element = tensor.element_type
    if isinstance(element, ir.ComplexType):
        # jaxlib's bindings fail on attributes with complex numbers.
        part = create_zeros(ir.RankedTensorType.get(tensor.shape, element.element_type))
        return create_value("stablehlo.complex", mlir_type, [part, part])
    zero = "0" if isinstance(element, ir.IntegerType) else "0.0"
    if str(element) == "i1":
        zero = "false"
    value = ir.Attribute.parse(f"dense<{zero}> : {mlir_type}")
    return create_value("stablehlo.constant", mlir_type, attributes={"value": value})
