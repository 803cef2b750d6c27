"""Refines StableHLO modules with unknown sizes to the sizes of a call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from jax2tf_bridge.from_jax import ir, jax_compat
from jax2tf_bridge.from_jax.stablehlo import (
    attribute,
    find_main,
    function_type,
    symbol_name,
    walk_operations,
)

_REFINE_ARGUMENTS = (
    "builtin.module(stablehlo-refine-arguments{{types={types}}},stablehlo-refine-shapes)"
)
_REFINE_SHAPES = "builtin.module(stablehlo-refine-shapes)"


class UnreadableError(Exception):
    """A module that the installed jaxlib cannot read."""


class MisfitError(Exception):
    """A module does not take arguments of these types; the text is the reason, if it is known."""


def refine_module(artifact: bytes, types: Sequence[str]) -> tuple[bytes, list[str]]:
    """Refines a module to arguments of these types.

    Main computes sizes from its arguments and passes them to inner functions as scalars. The
    passes do not propagate these scalars once they are constant, so this function does.

    Args:
      artifact: the portable artifact.
      types: the MLIR types of all arguments of main, without unknown sizes.

    Returns:
      The refined module, and the types of its results.

    Raises:
      UnreadableError: the installed jaxlib cannot read the module.
      MisfitError: the module does not take such arguments.
    """
    with jax_compat.make_ir_context():
        try:
            module = jax_compat.deserialize_module(artifact)
        except Exception as e:  # the type differs between releases of jaxlib
            raise UnreadableError from e
        _run(module, _REFINE_ARGUMENTS.format(types=",".join(types)))
        while _inline_constant_arguments(module):
            _run(module, _REFINE_SHAPES)
        _check_assertions(module)
        results = [str(t) for t in function_type(find_main(module)).results]
        version = ".".join(map(str, jax_compat.current_stablehlo_version()))
        return jax_compat.serialize_module(module, version), results


def _run(module: Any, pipeline: str) -> None:
    try:
        jax_compat.run_passes(module, pipeline)
    except Exception as e:  # the type differs between releases of jaxlib
        raise MisfitError from e


def _inline_constant_arguments(module: Any) -> bool:
    """Replaces arguments of functions that are the same constant scalar in every call.

    Returns whether the module changed.
    """
    functions = {symbol_name(op.operation): op.operation for op in module.body.operations}
    arguments: dict[tuple[str, int], list[Any]] = {}
    for op in walk_operations(module.operation):
        if op.name != "func.call":
            continue
        callee = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
        for i, operand in enumerate(op.operands):
            arguments.setdefault((callee, i), []).append(_read_scalar(operand))
    changed = False
    for (callee, i), values in arguments.items():
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
    """Raises the module's own error message if sizes contradict one of its assertions.

    XLA would report this when it compiles, but within a page of MLIR.
    """
    for op in walk_operations(module.operation):
        if op.name != "stablehlo.custom_call":
            continue
        if ir.StringAttr(op.attributes["call_target_name"]).value != "shape_assertion":
            continue
        holds, *sizes = [_read_scalar(operand) for operand in op.operands]
        message = attribute(op, "error_message")
        if message is None or holds is None or "false" not in str(holds):
            continue
        text = ir.StringAttr(message).value.partition(" Using the following")[0]
        for i, size in enumerate(sizes):
            match = re.match(r"dense<(-?\d+)>", str(size))
            text = text.replace(f"{{{i}}}", match[1] if match else "?")
        raise MisfitError(text)


def _read_scalar(value: Any) -> Any:
    """Returns the value of a scalar constant; None for anything else."""
    owner = value.owner
    # The owner of an argument is a block, which has no name.
    if getattr(owner, "name", "") != "stablehlo.constant":
        return None
    integer = str(value.type).startswith(("tensor<i", "tensor<ui"))
    return owner.attributes["value"] if integer else None
