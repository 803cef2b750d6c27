"""Specializes a module for several platforms to one of them.

JAX writes `case(platform_index)` with a branch for each platform, even around parts of a softmax.
"""

from __future__ import annotations

import dataclasses

from jax2tf_bridge.bytecode import Block, Function, Operation, Program, Value
from jax2tf_bridge.rewriting._patterns import every_operation, number_of


def choose_platform(program: Program, index: int) -> Program:
    """Returns the module with choices between platforms replaced by one platform's branches.

    Args:
      program: the module, whose main takes the platform index as its first argument.
      index: the index of the platform.
    """
    places = _index_places(program)
    functions = {
        name: _Choice({function.body.arguments[i]: index for i in places[name]}).function(function)
        if places[name]
        else function
        for name, function in program.functions.items()
    }
    is_same = all(function is program.functions[name] for name, function in functions.items())
    return program if is_same else dataclasses.replace(program, functions=functions)


def _index_places(program: Program) -> dict[str, set[int]]:
    """Returns the arguments that are the platform index in every call."""
    functions = program.functions
    calls = {
        name: [op for op in every_operation(function.body.operations) if op.name == "call"]
        for name, function in functions.items()
    }
    called = {op.attributes.get("callee") for each in calls.values() for op in each}
    # At first all arguments of called functions are assumed to be; calls then exclude some.
    places = {
        name: set(range(len(function.body.arguments))) if name in called else set()
        for name, function in functions.items()
    }
    main = next(name for name, function in functions.items() if function is program.main)
    places[main] = {0}
    while True:
        before = {name: set(each) for name, each in places.items()}
        for name, function in functions.items():
            indices = {function.body.arguments[i] for i in places[name]}
            for call in calls[name]:
                callee = call.attributes.get("callee")
                if isinstance(callee, str) and callee in places and callee != main:
                    places[callee] &= {i for i, v in enumerate(call.operands) if v in indices}
        if places == before:
            return places


class _Choice:
    """Choice of branches in one function.

    Attributes:
      indices: maps values that are the platform index to its number.
    """

    def __init__(self, indices: dict[Value, int]) -> None:
        self.indices = indices
        self._makers: dict[Value, Operation] = {}
        self._replaced: dict[Value, Value] = {}
        self._has_chosen = False

    def function(self, function: Function) -> Function:
        """Returns the function with its choices made; the function itself if it has none."""
        body = self._block(function.body)
        return dataclasses.replace(function, body=body) if self._has_chosen else function

    def _block(self, block: Block) -> Block:
        operations: list[Operation] = []
        for operation in block.operations:
            operands = tuple(self._replaced.get(value, value) for value in operation.operands)
            operation = dataclasses.replace(operation, operands=operands)
            branch = self._branch(operation)
            if branch is not None:
                self._has_chosen = True
                chosen = self._block(branch)
                operations += chosen.operations[:-1]
                self._replaced.update(zip(operation.results, chosen.returned, strict=True))
                continue
            if operation.regions:
                regions = tuple(map(self._block, operation.regions))
                operation = dataclasses.replace(operation, regions=regions)
            self._makers.update(dict.fromkeys(operation.results, operation))
            operations.append(operation)
        return dataclasses.replace(block, operations=tuple(operations))

    def _branch(self, operation: Operation) -> Block | None:
        """Returns the branch of a choice with a known index; None for other operations."""
        if operation.name != "case" or not operation.regions or len(operation.operands) != 1:
            return None
        (choice,) = operation.operands
        number = self.indices.get(choice)
        if number is None:
            constant = number_of(choice, self._makers.get)
            if constant is None:
                return None
            number = int(constant)
        # Indices out of range choose the last branch.
        branch = operation.regions[number if 0 <= number < len(operation.regions) else -1]
        fits = branch.operations and len(branch.returned) == len(operation.results)
        return branch if fits and not branch.arguments else None
