"""Hypothesis's strategy of random programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.random_programs.building import Builder, RejectedStepError
from tests.random_programs.operations import OPERATIONS
from tests.random_programs.program import Program

_OPERATIONS = [operation for weight, operation in OPERATIONS for _ in range(weight)]
_OPEN_SIZES = (1, 2, 3, 5)
# Symbolic sizes of JAX are at least 1.


@st.composite
def programs(draw: st.DrawFn, /, **options: Any) -> Program:
    """Draws programs, with the options of `build`."""
    return build(lambda low, high: int(draw(st.integers(low, high))), **options)


def random_program(seed: int, number: int, **options: Any) -> Program:
    """Makes a program of a seed, with the options of `build`; each number is another program."""
    return build(random.Random(f"{seed}:{number}").randint, **options)


def build(
    integer: Callable[[int, int], int],
    *,
    steps: tuple[int, int] = (1, 16),
    dtypes: Sequence[str] = (),
    x64: bool | None = None,
) -> Program:
    """Makes a program with up to two open sizes.

    Args:
      integer: draws an integer between two bounds, both included.
      steps: the least and the greatest number of steps; fewer where many are refused.
      dtypes: of the inputs; by default all that there are.
      x64: whether JAX has 64-bit dtypes; drawn by default.
    """
    symbols = ((), ("b",), ("b",), ("b", "n"))[integer(0, 3)]
    wide = bool(integer(0, 1)) if x64 is None else x64
    builder = Builder(integer, x64=wide, symbols=symbols, dtypes=dtypes)
    count = integer(*steps)
    for _ in range(2 * count):
        if len(builder.steps) >= count:
            break
        inputs, values = len(builder.inputs), len(builder.values)
        try:
            _OPERATIONS[integer(0, len(_OPERATIONS) - 1)](builder)
        except RejectedStepError:
            del builder.inputs[inputs:], builder.values[values:]
    names = [step.name for step in builder.steps]
    read = {operand for step in builder.steps for operand in step.operands}
    unread = [name for name in names if name not in read]
    outputs = names if integer(0, 2) == 0 else unread
    calls = [
        {symbol: _OPEN_SIZES[integer(0, 3)] for symbol in symbols}
        for _ in range(2 if symbols else 1)
    ]
    return builder.program(
        outputs,
        calls=tuple(calls),
        seed=integer(0, 2**16),
        specials=(0.0, 0.1, 0.3)[integer(0, 2)],
    )
