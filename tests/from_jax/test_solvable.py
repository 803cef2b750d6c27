"""Specifications that determine their variables: those of which jax.export says so."""

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from shape_poly import explain_undetermined, parse_comparison, symbolic_shape

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


def jax_problem(shape: Any) -> str | None:
    """Why jax.export cannot tell the variables from the sizes."""
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
    ours = explain_undetermined([symbolic_shape(spec)], ["x"], comparisons)
    jaxs = jax_problem(jax.export.symbolic_shape(spec, constraints=constraints))
    assert (ours is None) == (jaxs is None)
    for problem in (ours, jaxs):
        assert problem is None or "Cannot solve for values of dimension variables" in problem
