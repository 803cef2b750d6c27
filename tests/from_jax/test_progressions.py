"""Tests of variables that JAX gets in terms of others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

# Private: an export does not show how a variable is written for JAX.
from jax2tf_bridge.from_jax.shapes._assumptions import Progression, find_progressions
from shape_poly import DimExpr, parse_comparison, parse_dimension


@pytest.mark.parametrize(
    ("constraint", "found"),
    [
        ("mod(b, 2) == 0", [Progression("b", 2)]),
        ("mod(b, 3) == 2", [Progression("b", 3, 2)]),
        ("mod(b + 1, 3) == 2", []),
        ("mod(b, h) == 0", []),
        ("mod(b, 2) >= 1", []),
        ("b == 4", []),
    ],
)
def test_what_is_one(constraint: str, found: list[Progression]) -> None:
    assert list(find_progressions([parse_comparison(constraint)])) == found


@pytest.mark.parametrize(
    ("progression", "of_jax", "of_user"),
    [
        (Progression("b", 2), "2*b_over_2", "b"),
        (Progression("b", 2), "b_over_2", "floordiv(b, 2)"),
        (Progression("b", 2), "6*b_over_2*h + 3", "3*b*h + 3"),
        (Progression("b", 2), "4*b_over_2^2", "4*floordiv(b, 2)^2"),
        (Progression("b", 2, 1), "2*b_over_2 - 1", "b"),
        (Progression("b", 3, 1), "3*b_over_3 - 2", "b"),
        (Progression("b", 3, 1), "floordiv(b_over_3, 2)", "floordiv(floordiv(b + 2, 3), 2)"),
        (Progression("b", 2), "7", "7"),
    ],
)
def test_the_users_words(progression: Progression, of_jax: str, of_user: str) -> None:
    dimension = parse_dimension(of_jax)
    found = progression.in_terms_of_variable(DimExpr.sum([dimension]))
    assert found == DimExpr.sum([parse_dimension(of_user, simplify=True)])


@given(st.integers(2, 6), st.integers(0, 5), st.integers(1, 9), st.integers(-6, 6))
def test_the_variable_and_its_counter_are_texts_equal(
    factor: int, remainder: int, counter: int, coefficient: int
) -> None:
    progression = Progression("b", factor, remainder % factor)
    size = progression.in_terms_of_counter().evaluate({progression.counter: counter})
    assert size >= 1
    assert size % factor == remainder % factor
    dimension = DimExpr.sum([coefficient * DimExpr.variable(progression.counter), 5])
    back = progression.in_terms_of_variable(dimension)
    assert back.evaluate({"b": size}) == coefficient * counter + 5
