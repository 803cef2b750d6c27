"""Turns calls of parts (jax.shard_map), as TensorFlow reads them, back into Shardy's operation."""

from __future__ import annotations

from typing import Any

from jax2tf_bridge.errors import ModuleError
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    below,
    custom_call_target,
    replace_operation,
    symbol_name,
)

MANUAL_COMPUTATION = b"xla.sdy.manual_computation_body"
"""The names of functions that compute on parts begin with this."""

_TO_PARTS = "xla.sdy.GlobalToLocalShape"
_FROM_PARTS = "xla.sdy.LocalToGlobalShape"
_SIZES = {f"stablehlo.{name}" for name in ("concatenate", "get_dimension_size", "reshape")}
_NO_SHARDINGS = "#sdy.sharding_per_value<[]>"


def restore_manual_computations(module: Any) -> None:
    """Puts sdy.manual_computation in the place of each call of a function of parts.

    JAX refines open sizes and removes the choice of a platform before XLA reads the module, and the
    custom calls around such a call do not survive that.

    Args:
      module: an ir.Module that was read from an artifact; its context is the current one.
    """
    prefix = MANUAL_COMPUTATION.decode()
    functions = [op.operation for op in module.body.operations]
    bodies = {n: f for f in functions if (n := symbol_name(f) or "").startswith(prefix)}
    callers = [f for f in functions if symbol_name(f) not in bodies]
    # A body that takes the place of its call may hold further calls.
    while calls := [op for f in callers for op in below(f) if _callee(op) in bodies]:
        for call in calls:
            _restore(call, bodies[_callee(call)])
    for body in bodies.values():
        body.erase()


def _callee(op: Any) -> str:
    """Returns the function that a func.call calls, "" for any other operation."""
    return (
        str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value) if op.name == "func.call" else ""
    )


def _restore(call: Any, body: Any) -> None:
    to_parts = _neighbor([value.owner for value in call.operands], _TO_PARTS)
    users = [use.owner for result in call.results for use in result.uses]
    from_parts = _neighbor(users, _FROM_PARTS)
    if to_parts is None and from_parts is None:
        raise ModuleError(
            f"The function {_callee(call)} computes on parts, and its call has no custom call "
            f"{_TO_PARTS} or {_FROM_PARTS} beside it. Export the function again."
        )
    # Operands after these are the shapes of results of open sizes.
    operands = [] if to_parts is None else list(to_parts.operands)[: len(call.operands)]
    results = [] if from_parts is None else list(from_parts.results)
    with ir.InsertionPoint(call if from_parts is None else from_parts), call.location:
        computation = ir.Operation.create(
            "sdy.manual_computation",
            results=[result.type for result in results],
            operands=operands,
            attributes={
                "in_shardings": _shardings(to_parts, "xla.sdy.in_shardings"),
                "out_shardings": _shardings(from_parts, "xla.sdy.out_shardings"),
                "manual_axes": _parsed(to_parts or from_parts, "xla.sdy.manual_axes"),
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


def _neighbor(owners: list[Any], target: str) -> Any:
    """Returns the custom call with this target; None if the parts have no values there."""
    for owner in owners:
        operation = getattr(owner, "operation", owner)
        if not isinstance(operation, ir.Block) and custom_call_target(operation) == target:
            return operation
    return None


def _erase_unused_sizes(block: Any) -> None:
    """Erases the operations that computed shapes of parts for a call that is gone."""
    for op in reversed([each.operation for each in block.operations]):
        if op.name in _SIZES and not any(list(result.uses) for result in op.results):
            op.erase()


def _shardings(call: Any, name: str) -> Any:
    return ir.Attribute.parse(_NO_SHARDINGS) if call is None else _parsed(call, name)


def _parsed(call: Any, name: str) -> Any:
    texts: Any = ir.DictAttr(attribute(call, "mhlo.frontend_attributes"))
    return ir.Attribute.parse(str(ir.StringAttr(texts[name]).value))
