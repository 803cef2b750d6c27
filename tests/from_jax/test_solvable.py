"""Every specification that jax.export can solve for its variables can be solved here, too."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shape_poly import make_plan, parse_comparison, symbolic_shape

SPECIFICATIONS = [
    "b",
    "b, 3",
    "2*b",
    "b + 3",
    "- b + 9",
    "a + b",
    "a + b, a",
    "2*a + 3*b, b",
    "a*b",
    "a, a*b",
    "b*b",
    "b*b, b",
    "b^2 + b, b",
    "floordiv(b, 2)",
    "floordiv(b, 2), b",
    "floordiv(b, 2) + a, b",
    "mod(a, 3) + b, a",
    "max(b, 3)",
    "a + min(b, 3), b + 1",
    "a + b, b + c, c",
    "a + b, a - b + 9",
    "a*b + c, a, b",
    "a, a*b + b",
    "b, a + floordiv(b, a)",
]


CONSTRAINED = [
    ("a + b", ["a == b"]),
    ("a, b", ["a == b"]),
    ("a", ["a == 2*b"]),
    ("a + c", ["a == 2*b", "b == c"]),
    ("a + b", ["b == 3"]),
    ("a + b", ["2*b == 6"]),
    ("a + b", ["a >= b"]),
    ("b", ["mod(b, 2) == 0"]),
    ("b", ["a == 2*b"]),
]


SOLVED_ONLY_HERE = {"a, a*b", "a*b + c, a, b", "a, a*b + b"}
"""Specifications with a variable times another one."""


def jax_problem(shape: Any) -> str | None:
    """Returns jax.export's error if it cannot compute the variables from the sizes."""
    argument = jax.ShapeDtypeStruct(shape, jnp.float32)
    try:
        jax.export.export(jax.jit(lambda x: x), platforms=["cpu"])(argument)
    except ValueError as e:
        return str(e)
    return None


@pytest.mark.parametrize(
    ("spec", "constraints"), [*((spec, []) for spec in SPECIFICATIONS), *CONSTRAINED], ids=str
)
def test_what_can_be_solved_is_what_jax_can_solve(spec: str, constraints: list[str]) -> None:
    comparisons = [parse_comparison(text) for text in constraints]
    undetermined = make_plan([symbolic_shape(spec)], constraints=comparisons).undetermined
    problem = jax_problem(jax.export.symbolic_shape(spec, constraints=constraints))
    assert problem is None or "Cannot solve for values of dimension variables" in problem
    assert bool(undetermined) == (problem is not None and spec not in SOLVED_ONLY_HERE)
