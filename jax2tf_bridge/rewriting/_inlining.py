"""Replaces calls by the operations of the called functions, so that patterns see through them."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Iterator

from jax2tf_bridge.bytecode import Block, InlinedCall, Operation, Program, Value
from jax2tf_bridge.rewriting._patterns import (
    every_operation,
    replace_bodies,
    replace_values,
    with_parts,
)

_MAX_OPERATIONS = 1_000_000
"""Maximum number of operations to insert, far above any model's; other calls stay."""


def inline_calls(program: Program, composites: Collection[str]) -> Program:
    """Returns the program without calls, and without the functions that nothing else needs.

    Calls of missing functions, with the wrong number of arguments, or of functions that call each
    other in a circle stay. Operations keep the calls of the user's functions that they replace,
    so that a consumer can make functions of them again.

    Args:
      program: the program.
      composites: the names of the composites that stay; others are calls of their decompositions.
    """
    inlining = _Inlining(program, frozenset(composites))
    bodies = {name: inlining.block(name) for name in _order_by_calls(program)}
    new = replace_bodies(program, bodies)
    return new if new is program else _remove_unused_functions(new)


class _Inlining:
    """Bodies of the functions so far, without calls."""

    def __init__(self, program: Program, composites: frozenset[str]) -> None:
        self._program, self._composites = program, composites
        self._users_functions = _find_users_functions(program)
        self._bodies: dict[str, Block] = {}
        self._left = _MAX_OPERATIONS

    def block(self, name: str) -> Block:
        """Returns the body of a function, whose callees were handled before."""
        self._bodies[name] = body = self._replace_calls(self._program.functions[name].body, {})
        return body

    def _replace_calls(self, block: Block, values: dict[Value, Value]) -> Block:
        operations: list[Operation] = []
        for operation in block.operations:
            operands = replace_values(operation.operands, values)
            body = self._find_body(operation)
            if body is None:
                regions = tuple(self._replace_calls(each, values) for each in operation.regions)
                operations.append(with_parts(operation, operands, regions))
                continue
            call = _CallState(dict(zip(body.arguments, operands, strict=True)), operation.source)
            if operation.callee in self._users_functions:
                call.calls = (InlinedCall(operation.callee, operation.source),)
            operations += [self._copy(each, call) for each in body.operations[:-1]]
            results = replace_values(body.returned, call.values)
            values.update(zip(operation.results, results, strict=True))
        if all(a is b for a, b in zip(operations, block.operations, strict=False)):
            return block
        return dataclasses.replace(block, operations=tuple(operations))

    def _find_body(self, operation: Operation) -> Block | None:
        """Returns the body that replaces a call; None for other operations and invalid calls."""
        if operation.name == "composite" and operation.attributes.get("name") in self._composites:
            return None
        body = self._bodies.get(operation.callee or "")
        if body is None or not body.operations or self._left < len(body.operations):
            return None
        parts = len(body.arguments), len(body.returned)
        return body if parts == (len(operation.operands), len(operation.results)) else None

    def _copy(self, operation: Operation, call: _CallState) -> Operation:
        """Copies an operation of a called function, with new values for its results."""
        self._left -= 1
        results = tuple(Value(value.type) for value in operation.results)
        operands = replace_values(operation.operands, call.values)
        regions = tuple(self._copy_block(region, call) for region in operation.regions)
        call.values.update(zip(operation.results, results, strict=True))
        return dataclasses.replace(
            operation,
            operands=operands,
            results=results,
            regions=regions,
            source=operation.source or call.source,
            calls=(*call.calls, *map(call.copy_inner, operation.calls)),
        )

    def _copy_block(self, block: Block, call: _CallState) -> Block:
        arguments = tuple(Value(value.type) for value in block.arguments)
        call.values.update(zip(block.arguments, arguments, strict=True))
        return Block(arguments, tuple(self._copy(each, call) for each in block.operations))


@dataclasses.dataclass
class _CallState:
    """A call that is being replaced.

    Attributes:
      values: the values of the caller by those of the called function.
      source: the line of the call, for operations without one.
      calls: the call itself, if the called function is the user's.
    """

    values: dict[Value, Value]
    source: str | None
    calls: tuple[InlinedCall, ...] = ()
    _inner: dict[InlinedCall, InlinedCall] = dataclasses.field(default_factory=dict)

    def copy_inner(self, call: InlinedCall) -> InlinedCall:
        """Copies a call within the called function."""
        return self._inner.setdefault(call, dataclasses.replace(call))


def _find_users_functions(program: Program) -> frozenset[str]:
    """Finds the functions that the user wrote, in contrast to those of JAX.

    The lines of an operation are those of the user, so operations of JAX's functions have the line
    of the call.
    """
    callers: dict[str, set[str | None]] = defaultdict(set)
    lines: dict[str, set[str | None]] = {}
    for name, function in program.functions.items():
        lines[name] = set()
        for each in every_operation(function.body.operations):
            if each.name == "call" and each.callee is not None:
                callers[each.callee].add(each.source)
            if each.name not in ("constant", "return"):
                lines[name].add(each.source)
    return frozenset(name for name in callers if lines.get(name, set()) - callers[name] - {None})


def _order_by_calls(program: Program) -> list[str]:
    """Lists the functions, each after those that it calls, without recursion."""
    functions = program.functions
    callees = {
        name: sorted({c for o in every_operation(f.body.operations) if (c := o.callee)})
        for name, f in functions.items()
    }
    order: dict[str, None] = {}
    seen: set[str] = set()
    for start in functions:
        waiting = [start]
        while waiting:
            name = waiting[-1]
            new = [] if name in seen else [c for c in callees[name] if c in functions]
            seen.add(name)
            waiting += [c for c in new if c not in seen]
            if waiting[-1] == name:
                order.setdefault(waiting.pop())
    return list(order)


def _remove_unused_functions(program: Program) -> Program:
    functions = program.functions
    used = {name for name, function in functions.items() if function is program.main}
    waiting = list(used)
    while waiting:
        body = functions[waiting.pop()].body
        for name in _list_used_functions(body):
            if name in functions and name not in used:
                used.add(name)
                waiting.append(name)
    return dataclasses.replace(
        program, functions={name: functions[name] for name in functions if name in used}
    )


def _list_used_functions(body: Block) -> Iterator[str]:
    for operation in every_operation(body.operations):
        if (callee := operation.callee) is not None:
            yield callee
        names = operation.attributes.get("called_computations")
        for name in names if isinstance(names, tuple) else ():
            if isinstance(name, str):
                yield name.removeprefix("@")
