"""Turns calls of parts (jax.shard_map), as TensorFlow reads them, back into Shardy's operation."""

from __future__ import annotations

from typing import Any

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
    for op in list(below(module.operation)):
        if op.name == "func.call" and _callee(op).startswith(prefix):
            _restore(op)
    # XLA expects custom calls around each call of a function with such a name.
    for op in below(module.operation):
        name = symbol_name(op) or ""
        if name.startswith(prefix):
            op.attributes["sym_name"] = ir.StringAttr.get(_renamed(name))


def _callee(call: Any) -> str:
    return str(ir.FlatSymbolRefAttr(call.attributes["callee"]).value)


def _renamed(body: str) -> str:
    return body.replace(MANUAL_COMPUTATION.decode(), "jax2tf_bridge.parts", 1)


def _restore(call: Any) -> None:
    to_parts = _neighbor([value.owner for value in call.operands], _TO_PARTS)
    users = [use.owner for result in call.results for use in result.uses]
    from_parts = _neighbor(users, _FROM_PARTS)
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
        block = computation.regions[0].blocks.append(
            *[value.type for value in call.operands],
            arg_locs=[call.location] * len(call.operands),
        )
        with ir.InsertionPoint(block):
            inner = ir.Operation.create(
                "func.call",
                results=[result.type for result in call.results],
                operands=list(block.arguments),
                attributes={"callee": ir.FlatSymbolRefAttr.get(_renamed(_callee(call)))},
            )
            ir.Operation.create("sdy.return", operands=list(inner.results))
    if from_parts is not None:
        block = ir.InsertionPoint(from_parts).block
        replace_operation(from_parts, computation.results)
        _erase_unused_sizes(block)
    call.erase()
    if to_parts is not None:
        to_parts.erase()


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
