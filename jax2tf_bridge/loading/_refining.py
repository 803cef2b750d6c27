"""Refines StableHLO modules with open sizes to the sizes of a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.from_jax import _jax_compat
from jax2tf_bridge.from_jax._jax_compat import ir
from jax2tf_bridge.from_jax.stablehlo._operations import (
    attribute,
    below,
    function_type,
    main_of,
    symbol_name,
)

_WITH_ARGUMENTS = (
    "builtin.module(stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes)"
)
_AGAIN = "builtin.module(stablehlo-refine-shapes)"


class UnreadableError(Exception):
    """A module that the installed jaxlib cannot read."""


class MisfitError(Exception):
    """A module does not take arguments of these types; the text says why, if it is known."""


def refined(artifact: bytes, types: Sequence[str]) -> tuple[bytes, list[str]]:
    """Refines a module to arguments of these types, and returns the types of its results.

    Sizes reach inner functions as numbers that main computes from its arguments: once those are
    known, they are written into the functions, which is what the passes do not do.

    Args:
      artifact: the portable artifact.
      types: of all that main takes, as MLIR writes them; nothing in them is open.

    Raises:
      UnreadableError: the installed jaxlib cannot read it.
      MisfitError: the module does not take such arguments.
    """
    with _jax_compat.make_ir_context():
        try:
            module = _jax_compat.deserialize_module(artifact)
        except Exception as e:  # of types that differ between releases of jaxlib
            raise UnreadableError from e
        _run(module, _WITH_ARGUMENTS.format(types=",".join(types)))
        while _hand_down_constants(module):
            _run(module, _AGAIN)
        _check_assertions(module)
        results = [str(t) for t in function_type(main_of(module)).results]
        version = ".".join(map(str, _jax_compat.current_stablehlo_version()))
        return _jax_compat.serialize_module(module, version), results


def _run(module: Any, pipeline: str) -> None:
    try:
        _jax_compat.run_passes(module, pipeline)
    except Exception as e:  # of types that differ between releases of jaxlib
        raise MisfitError from e


def _hand_down_constants(module: Any) -> bool:
    """Moves scalars that all calls of a function give it into it, if there are any."""
    functions = {symbol_name(op.operation): op.operation for op in module.body.operations}
    given: dict[tuple[str, int], list[Any]] = {}
    for op in below(module.operation):
        if op.name != "func.call":
            continue
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        for i, operand in enumerate(op.operands):
            given.setdefault((callee, i), []).append(_scalar(operand))
    changed = False
    for (callee, i), values in given.items():
        texts = {"" if value is None else str(value) for value in values}
        if callee not in functions or callee == "main" or len(texts) > 1 or "" in texts:
            continue
        block = functions[callee].regions[0].blocks[0]
        argument = block.arguments[i]
        if not list(argument.uses):
            continue
        with ir.Location.unknown(), ir.InsertionPoint.at_block_begin(block):
            constant = ir.Operation.create(
                "stablehlo.constant", results=[argument.type], attributes={"value": values[0]}
            )
        argument.replace_all_uses_with(constant.results[0])
        changed = True
    return changed


def _check_assertions(module: Any) -> None:
    """Raises, in the module's words, if sizes contradict what it asserts.

    XLA would tell when it compiles, with a page of MLIR around it.
    """
    for op in below(module.operation):
        if op.name != "stablehlo.custom_call":
            continue
        if ir.StringAttr(op.attributes["call_target_name"]).value != "shape_assertion":
            continue
        holds, *sizes = [_scalar(operand) for operand in op.operands]
        message = attribute(op, "error_message")
        if message is None or holds is None or "false" not in str(holds):
            continue
        text = ir.StringAttr(message).value.partition(" Using the following")[0]
        for i, size in enumerate(sizes):
            found = re.match(r"dense<(-?\d+)>", str(size))
            text = text.replace(f"{{{i}}}", found[1] if found else "?")
        raise MisfitError(text)


def _scalar(value: Any) -> Any:
    """Returns the value of a scalar constant; None for anything else."""
    owner = value.owner
    # A block, for an argument.
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    integer = str(value.type).startswith(("tensor<i", "tensor<ui"))
    return owner.attributes["value"] if integer else None
