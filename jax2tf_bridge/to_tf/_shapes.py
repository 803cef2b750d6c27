"""The static shapes of a record's results, and whether those of its arguments fit each other.

What is not known before the call is checked by the module itself, with JAX's text. Here is what
is known: otherwise XLA often trips over a contradiction first, with a dump of the module.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from jax2tf_bridge._errors import bullet_list
from jax2tf_bridge._portable import PortableFunction
from jax2tf_bridge.to_tf._dtypes import static_shape
from shape_poly import Dim, evaluate_shape, is_linear, parse_dimension, solve_dimensions

_COMPARISONS = {">=": operator.ge, "<=": operator.le, "==": operator.eq}


def result_shapes(record: PortableFunction, args: Sequence[Any]) -> list[tuple[int | None, ...]]:
    """The results' shapes as far as the arguments' static shapes tell them.

    They must be as static as the arguments are: a loop's state may not lose its shape.

    Raises:
      tf.errors.InvalidArgumentError: the static shapes contradict each other or a constraint.
    """
    expected = [aval.op_shape for aval in record.in_avals]
    if all(isinstance(d, int) for shape in expected for d in shape):
        values: dict[str, int] = {}
    else:
        actual = [static_shape(a) for a in args]
        values = solve_dimensions(expected, actual)
        problems = _contradictions(record, expected, actual, values)
        if problems:
            raise tf.errors.InvalidArgumentError(
                None,
                None,
                f"Input shapes do not match the polymorphic shapes specification of {record.name}:"
                + bullet_list(problems),
            )
    return [evaluate_shape(aval.op_shape, values) for aval in record.out_avals]


def _contradictions(
    record: PortableFunction,
    expected: Sequence[Sequence[Dim]],
    actual: Sequence[Sequence[int | None]],
    values: Mapping[str, int],
) -> list[str]:
    paths: tuple[str, ...] = ()
    problems = []
    for i, (dimensions, sizes) in enumerate(zip(expected, actual, strict=True)):
        for dimension, size in zip(dimensions, sizes, strict=True):
            reason = _reason(dimension, size, values)
            if reason is not None:
                paths = paths or record.in_paths()
                shape, got = (", ".join(map(str, s)) for s in (dimensions, sizes))
                problems.append(f"{paths[i]}: expected shape ({shape}), got ({got}): {reason}")
    return problems + [
        f"the symbolic shape constraint {constraint} does not hold for "
        + ", ".join(f"{name} = {value}" for name, value in values.items())
        for constraint in record.constraints
        if not _holds(constraint, values)
    ]


def _reason(dimension: Dim, size: int | None, values: Mapping[str, int]) -> str | None:
    """Why `dimension` cannot be `size`, or None if it can, or if nothing is known of it."""
    if isinstance(dimension, int) or size is None:
        return None
    (found,) = evaluate_shape((dimension,), values)
    known = [f"{name} = {values[name]}" for name in sorted(dimension.variables()) if name in values]
    if found is not None:
        return None if found == size else f"{dimension} is {found} for {', '.join(known)}"
    unknown = dimension.variables() - values.keys()
    if len(unknown) != 1:
        return None
    (name,) = unknown
    if not is_linear(dimension, name):
        return None
    first, second = (evaluate_shape((dimension,), {**values, name: value})[0] for value in (1, 2))
    if first is None or second is None or first == second:
        return None
    slope = second - first
    value, remainder = divmod(size - first, slope)
    if remainder:
        return f"Division had remainder {remainder} when computing the value of '{name}'"
    return f"Expected value >= 1 for dimension variable '{name}'. Got: {value + 1}"


def _holds(constraint: str, values: Mapping[str, int]) -> bool:
    """Whether a constraint holds, or cannot be judged by these values."""
    sign = next((sign for sign in _COMPARISONS if sign in constraint), None)
    if sign is None:
        return True
    left, right = constraint.split(sign, 1)
    sides = [parse_dimension(left), parse_dimension(right)]
    first, second = evaluate_shape(sides, values)
    return first is None or second is None or bool(_COMPARISONS[sign](first, second))
