"""Restores Shardy's manual_computation from the calls that artifacts have for jax.shard_map."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    custom_call_target,
    replace_operation,
    symbol_name,
    walk_operations,
)

MANUAL_COMPUTATION = b"xla.sdy.manual_computation_body"
"""Name prefix of functions that compute on per-device parts."""

_TO_PARTS = "xla.sdy.GlobalToLocalShape"
_FROM_PARTS = "xla.sdy.LocalToGlobalShape"
_SIZES = {f"stablehlo.{name}" for name in ("concatenate", "get_dimension_size", "reshape")}
_NO_SHARDINGS = "#sdy.sharding_per_value<[]>"


def restore_manual_computations(module: Any) -> None:
    """Replaces each call of a function on parts by an sdy.manual_computation, in place.

    JAX refines open sizes and resolves the platform before XLA reads the module. The custom calls
    around such a call do not survive that.

    Args:
      module: an ir.Module that was read from an artifact; its context must be the current one.
    """
    prefix = MANUAL_COMPUTATION.decode()
    functions = [op.operation for op in module.body.operations]
    bodies = {n: f for f in functions if (n := symbol_name(f) or "").startswith(prefix)}
    callers = [f for f in functions if symbol_name(f) not in bodies]
    # An inlined body may contain further calls.
    while calls := [op for f in callers for op in walk_operations(f) if _read_callee(op) in bodies]:
        for call in calls:
            _restore(call, bodies[_read_callee(call)])
    for body in bodies.values():
        body.erase()


def _read_callee(op: Any) -> str:
    """Returns the name of the function that a func.call calls; "" for other operations."""
    return (
        str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value) if op.name == "func.call" else ""
    )


def _restore(call: Any, body: Any) -> None:
    to_parts = _find_custom_call([value.owner for value in call.operands], _TO_PARTS)
    users = [use.owner for result in call.results for use in result.uses]
    from_parts = _find_custom_call(users, _FROM_PARTS)
    if to_parts is None and from_parts is None:
        raise ModuleError(
            f"The function {_read_callee(call)} computes on parts, and its call has no custom call "
            f"{_TO_PARTS} or {_FROM_PARTS} beside it. Export the function again."
        )
    # The remaining operands are the shapes of results with open sizes.
    operands = [] if to_parts is None else list(to_parts.operands)[: len(call.operands)]
    results = [] if from_parts is None else list(from_parts.results)
    with ir.InsertionPoint(call if from_parts is None else from_parts), call.location:
        computation = ir.Operation.create(
            "sdy.manual_computation",
            results=[result.type for result in results],
            operands=operands,
            attributes={
                "in_shardings": _read_shardings(to_parts, "xla.sdy.in_shardings"),
                "out_shardings": _read_shardings(from_parts, "xla.sdy.out_shardings"),
                "manual_axes": _parse_frontend_attribute(
                    to_parts or from_parts, "xla.sdy.manual_axes"
                ),
            },
            regions=1,
        )
    _move_body(body, computation)
    if from_parts is not None:
        block = ir.InsertionPoint(from_parts).block
        replace_operation(from_parts, computation.results)
        _erase_unused_sizes(block)
    call.erase()
    if to_parts is not None:
        to_parts.erase()


def _move_body(body: Any, computation: Any) -> None:
    # Several calls may share a body.
    copy = body.clone(ir.InsertionPoint(body))
    block = copy.regions[0].blocks[0]
    block.append_to(computation.regions[0])
    end = list(block.operations)[-1].operation
    with ir.InsertionPoint(end), end.location:
        ir.Operation.create("sdy.return", operands=list(end.operands))
    end.erase()
    copy.erase()


def _find_custom_call(owners: list[Any], target: str) -> Any:
    """Returns the first of the operations that is a custom call with this target, or None."""
    for owner in owners:
        operation = getattr(owner, "operation", owner)
        if not isinstance(operation, ir.Block) and custom_call_target(operation) == target:
            return operation
    return None


def _erase_unused_sizes(block: Any) -> None:
    """Erases unused operations that computed the shapes of parts for the erased call."""
    for op in reversed([inner.operation for inner in block.operations]):
        if op.name in _SIZES and not any(list(result.uses) for result in op.results):
            op.erase()


def _read_shardings(call: Any, name: str) -> Any:
    return (
        ir.Attribute.parse(_NO_SHARDINGS) if call is None else _parse_frontend_attribute(call, name)
    )


def _parse_frontend_attribute(call: Any, name: str) -> Any:
    texts: Any = ir.DictAttr(attribute(call, "mhlo.frontend_attributes"))
    return ir.Attribute.parse(str(ir.StringAttr(texts[name]).value))
