"""Finds the operations of a module that TensorFlow's operations cannot express."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jax2tf_bridge._operations import COMPOSITES, CUSTOM_CALLS, OPERATIONS
from jax2tf_bridge.bytecode import Block, Function, Operation, OtherType, Program, Value

_PLATFORM = "_platform_index"
"""JAX's name for the platform index argument."""


@dataclass(frozen=True)
class Inexpressible:
    """An operation that TensorFlow's operations cannot express.

    Attributes:
      operation: the name of the operation, or the target of the custom call.
      problem: the reason, to follow "predict cannot become TensorFlow's own operations: ".
      source: the user's line as "file:line", if known.
    """

    operation: str
    problem: str
    source: str | None


def find_inexpressible(program: Program) -> Inexpressible | None:
    """Returns the first operation that TensorFlow's operations cannot express, or None."""
    return next(iterate_inexpressible(program), None)


def iterate_inexpressible(program: Program) -> Iterator[Inexpressible]:
    """Yields the operations of a module that TensorFlow's operations cannot express."""
    return (p for o in _walk_operations(program) if (p := _find_problem(o)) is not None)


def _walk_operations(program: Program) -> Iterator[Operation]:
    """Yields the reachable operations, except in decompositions of known composites.

    Platform branches are skipped, because only one of them is emitted, and it is not known here.
    """
    seen = {"main"}
    blocks: list[Block] = [program.main.body]
    by_platform = {
        v for function in program.functions.values() for v in _find_platform_index(function)
    }
    constants: set[Value] = set()
    while blocks:
        for operation in blocks.pop().operations:
            yield operation
            if operation.name == "constant":
                constants.update(operation.results)
            if operation.name == "case" and operation.operands[0] in by_platform:
                # JAX may first select a branch index by platform, and pass it to another case.
                if constants.issuperset(v for region in operation.regions for v in region.returned):
                    by_platform.update(operation.results)
                continue
            blocks += operation.regions
            if operation.name == "composite" and operation.attributes.get("name") in COMPOSITES:
                continue
            callee = operation.callee
            if callee is not None and callee in program.functions and callee not in seen:
                seen.add(callee)
                blocks.append(program.functions[callee].body)


def _find_platform_index(function: Function) -> Iterator[Value]:
    """Yields the platform index argument of a function, if it has one."""
    attributes = function.attributes.get("arg_attrs")
    if isinstance(attributes, tuple):
        # Not strict, because a damaged artifact may have another number of attributes.
        for value, notes in zip(function.body.arguments, attributes, strict=False):
            if isinstance(notes, Mapping) and notes.get("jax.global_constant") == _PLATFORM:
                yield value


def _find_problem(operation: Operation) -> Inexpressible | None:
    name = operation.name
    if name == "custom_call":
        target = str(operation.attributes.get("call_target_name"))
        call = CUSTOM_CALLS.get(target)
        if call is not None and call.in_tensorflow:
            return None
        return _make_inexpressible(operation, target, f"the custom call {target!r}")
    kind = OPERATIONS.get(name)
    if (kind is None or not kind.in_tensorflow) and name != "return":
        return _make_inexpressible(operation, name, f"the operation {name}")
    for value in operation.results:
        if isinstance(value.type, OtherType) and "quant" in value.type.text:
            text = f"the quantised type {value.type.text} of a result of {name}"
            return _make_inexpressible(operation, "quantised types", text)
    return None


def _make_inexpressible(operation: Operation, name: str, what: str) -> Inexpressible:
    place = f" at {operation.source}" if operation.source else ""
    return Inexpressible(name, f"they cannot express {what}{place}", operation.source)
