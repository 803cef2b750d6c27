"""Tests the sampler of sizes."""

from __future__ import annotations

import itertools
from itertools import islice
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# Private: the limit of a search, which a test lowers.
from shape_poly import Comparison, SymbolicScope, _sampling, sample_sizes, symbolic_shape
from tests import strategies
from tests.sampling import examples

LARGE = [
    (["n == 2*m", "3*k >= m"], {"n": [4096]}, {"n": 4096, "m": 2048, "k": 683}),
    (["n == 2*m", "3*k >= m"], {"m": [700]}, {"n": 1400, "m": 700, "k": 234}),
    (["mod(k, 100) == 0", "m >= 5000"], {}, {"n": 1, "m": 5000, "k": 100}),
    (["n >= 300", "m > n", "k == m*n"], {}, {"n": 300, "m": 301, "k": 90300}),
]


@given(st.lists(strategies.comparisons, max_size=3), st.integers(0, 9))
@settings(max_examples=examples(15), deadline=None)
def test_sizes_satisfy_constraints_and_depend_on_the_seed_alone(
    constraints: list[Comparison], seed: int
) -> None:
    scope = SymbolicScope(constraints, check=False)
    # Where no sizes satisfy the constraints, the search ends at this limit only.
    with mock.patch.object(_sampling, "_MAX_CHECKS", 5000):
        draws, again = (
            [*islice(sample_sizes(strategies.VARIABLES, scope, seed=seed), 5)] for _ in range(2)
        )
        first = [*islice(sample_sizes(strategies.VARIABLES, scope), 1)]
    assert draws == again
    assert all(scope.holds(sizes) for sizes in draws)
    assert len({tuple(sizes.items()) for sizes in draws}) == len(draws)
    assert draws[:1] == first


@given(st.lists(strategies.comparisons, max_size=2), st.permutations(range(1, 6)))
def test_all_sizes_are_found_in_the_order_of_the_candidates(
    constraints: list[Comparison], order: list[int]
) -> None:
    scope = SymbolicScope(constraints, check=False)
    among = dict.fromkeys("abc", order)
    tried = (dict(zip("abc", s, strict=True)) for s in itertools.product(order, repeat=3))
    allowed = [sizes for sizes in tried if scope.holds(sizes)]
    assert [*sample_sizes("abc", scope, among=among)] == allowed
    drawn = [*sample_sizes("abc", scope, among=among, seed=1)]
    assert drawn[:1] == allowed[:1]
    assert all(sizes in allowed for sizes in drawn)
    assert len(drawn) >= min(len(allowed), 3)


@pytest.mark.parametrize(("constraints", "among", "expected"), LARGE)
def test_sizes_beyond_the_candidates(
    constraints: list[str], among: dict[str, list[int]], expected: dict[str, int]
) -> None:
    assert next(sample_sizes("nmk", SymbolicScope(constraints), among=among)) == expected


def test_there_may_be_no_sizes() -> None:
    assert list(sample_sizes("n", SymbolicScope(["n >= 5000"]), largest=1024)) == []
    assert list(sample_sizes("nm", SymbolicScope(["n == 2*m"]), among={"n": [7]})) == []
    odd_and_even = SymbolicScope(["mod(a + b*c, 2) == 0", "mod(a + b*c, 2) == 1"], check=False)
    assert list(sample_sizes("abc", odd_and_even, seed=0)) == []
    never = SymbolicScope([Comparison(">=", 1, 2)], check=False)
    assert list(sample_sizes("a", never)) == list(sample_sizes("", never)) == []


def test_what_no_variable_depends_on_makes_no_difference() -> None:
    assert list(sample_sizes("", SymbolicScope(["k >= 2"]), seed=0)) == [{}]
    assert next(sample_sizes("b", SymbolicScope(["k >= b + 2"]))) == {"b": 1}


def test_sizes_of_symbolic_dimensions_are_not_zero() -> None:
    shapes = [symbolic_shape("b - 3, 0, floordiv(8, n - 1)")]
    sizes = next(sample_sizes("bn", SymbolicScope(), nonempty=shapes))
    assert sizes == {"b": 4, "n": 2}


def test_sizes_that_fit_are_not_sought_beyond_the_candidates() -> None:
    for seed in (None, *range(5)):
        for texts in (["b <= 100000"], ["b*n <= 2147483647"]):
            drawn = sample_sizes(["b", "n"], SymbolicScope(texts), seed=seed)
            assert max(size for sizes in islice(drawn, 20) for size in sizes.values()) <= 256


def test_a_variable_waits_for_one_that_has_a_least_size() -> None:
    sizes = next(sample_sizes(["a", "b"], SymbolicScope(["a >= b", "b >= 20"]), seed=0))
    assert sizes["a"] >= sizes["b"] >= 20
