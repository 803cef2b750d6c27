"""Specializes a module for several platforms to one of them.

JAX writes `case(platform_index)` with a branch for each platform, even around parts of a softmax.
"""

from __future__ import annotations

from jax2tf_bridge.bytecode import Operation, Program
from jax2tf_bridge.rewriting._patterns import Matcher, Pattern, Replacement, rewrite


def choose_platform(program: Program, index: int) -> Program:
    """Returns the module with choices between platforms replaced by one platform's branches.

    Args:
      program: the module without calls, whose main takes the platform index as its first argument.
      index: the index of the platform.
    """
    argument = program.main.body.arguments[0]

    def choose(operation: Operation, matcher: Matcher) -> Replacement | None:
        (choice,) = operation.operands
        number = index if choice is argument else matcher.number(choice)
        if number is None:
            return None
        # Indices out of range choose the last branch.
        regions = operation.regions
        branch = regions[int(number) if 0 <= number < len(regions) else -1]
        if branch.arguments or len(branch.returned) != len(operation.results):
            return None
        return Replacement(branch.operations[:-1], branch.returned)

    return rewrite(program, [Pattern(frozenset({"case"}), choose)])
