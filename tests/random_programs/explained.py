"""Differences from JAX that are documented: each with its reason and the page that has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tests.random_programs.comparing import widened
from tests.random_programs.program import Step
from tests.random_programs.values import Array, kind_of


@dataclass(frozen=True)
class Case:
    """A step that differs, with the values around it.

    Attributes:
      way: of `WAYS`.
      step: the only one of the program.
      operands: its arguments.
      actual, expected: the result there, and JAX's.
      wrong: marks the elements that differ.
    """

    way: str
    step: Step
    operands: Sequence[Array]
    actual: Array
    expected: Array
    wrong: Array

    def has(self, *kinds: str) -> bool:
        """Returns whether a float or complex operand has "nan", "inf" or "-inf"."""
        checks: dict[str, Callable[[Array], bool]] = {
            "nan": lambda a: bool(np.isnan(a).any()),
            "inf": lambda a: bool(np.isinf(a).any()),
        }
        floats = [widened(a) for a in self.operands if kind_of(str(a.dtype)) in "fc"]
        return any(checks[kind](a) for kind in kinds for a in floats)


@dataclass(frozen=True)
class Explanation:
    """A documented difference.

    Attributes:
      reason: what differs, and why.
      page: where the documentation has it.
      applies: whether a case is one of these.
    """

    reason: str
    page: str
    applies: Callable[[Case], bool]


def _drops_nan_of_erf(case: Case) -> bool:
    return (
        case.way == "xla"
        and "erf" in case.step.operation
        and bool(np.isnan(widened(case.expected)[case.wrong]).all())
    )


EXPLANATIONS: tuple[Explanation, ...] = (
    Explanation(
        "TensorFlow's XLA clamps the argument of erf on CPU, which drops NaN",
        "docs/targets.md",
        _drops_nan_of_erf,
    ),
)


def explanation_of(case: Case) -> Explanation | None:
    """Finds the first explanation of a case."""
    return next((e for e in EXPLANATIONS if e.applies(case)), None)
