"""Tests that the corpus is right: JAX rejects its cases, and plain JAX works where they say."""

from __future__ import annotations

import dataclasses
import doctest
from collections import Counter
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export as jax_export

from tests.sampling import sampled
from tests.shape_corpus import CASES, VJP_CASES, labelled, shape_case
from tests.shape_corpus.shape_case import (
    ShapeCase,
    Sizes,
    grid,
    holds,
    impossible,
    provable,
    requires,
)

ALL = (*CASES, *VJP_CASES)
each_case = pytest.mark.parametrize("case", ALL, ids=str)

# Few sizes fit: no more than this many of those that are tried.
FEW = 3


def works(case: ShapeCase, sizes: Sizes) -> bool:
    """Checks whether plain JAX traces the case at these sizes."""
    try:
        jax.eval_shape(lambda *args: case.traced(args), *case.shapes(sizes))
    # Whatever a function raises at a size that does not fit it.
    except Exception:
        return False
    return True


def tried_sizes(case: ShapeCase) -> list[Sizes]:
    alone = len(case.variables) == 1
    return grid(case.variables, 24 if alone else 12, 24 if alone else 16)


def problem_with_label(case: ShapeCase) -> str | None:
    """Explains how plain JAX contradicts the label of a case, if it does."""
    working: list[Sizes] = []
    failing: list[Sizes] = []
    for sizes in tried_sizes(case):
        (working if works(case, sizes) else failing).append(sizes)
    if case.label == "provable":
        return f"fails at {failing[0]}" if failing else None
    if case.label == "requirement":
        return _problem_with_requirement(case, working, failing)
    return _problem_with_obstacle(case, working, failing)


def _problem_with_requirement(
    case: ShapeCase, working: list[Sizes], failing: list[Sizes]
) -> str | None:
    for sizes in failing:
        if case.fits(sizes):
            return f"fails at {sizes}, which the requirement admits"
    excluded = [sizes for sizes in working if not case.fits(sizes)]
    if excluded and not case.stricter:
        return f"works at {excluded[0]}, which the requirement excludes"
    if case.stricter and not excluded:
        return "is no stricter than it has to be"
    return None


def _problem_with_obstacle(
    case: ShapeCase, working: list[Sizes], failing: list[Sizes]
) -> str | None:
    if case.obstacle == "needs a number":
        return f"fails at {failing[0]}" if failing else None
    limit = FEW if case.obstacle == "few sizes fit" else 0
    if len(working) > limit:
        return f"works at {working[limit]}"
    if case.obstacle == "few sizes fit" and not working:
        return "works at no size"
    return None


def rejection(case: ShapeCase) -> Exception | None:
    """Returns the error that JAX raises for the case with its plain specification."""
    try:
        jax_export.export(jax.jit(lambda *args: case.traced(args)))(*case.symbolic_shapes())
    # JAX and flax raise errors of many kinds.
    except Exception as e:
        return e
    return None


@pytest.mark.slow
@each_case
def test_jax_rejects(case: ShapeCase) -> None:
    assert rejection(case) is not None


@pytest.mark.slow
@pytest.mark.parametrize("case", VJP_CASES, ids=str)
def test_jax_exports_the_function_whose_gradient_it_rejects(case: ShapeCase) -> None:
    assert rejection(dataclasses.replace(case, of_gradient=False)) is None


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(ALL, every=6), ids=str)
def test_label(case: ShapeCase) -> None:
    assert problem_with_label(case) is None


@each_case
def test_sizes_satisfy_the_requirement(case: ShapeCase) -> None:
    different = {tuple(sizes.items()) for sizes in case.sizes}
    assert len(different) >= 10
    assert all(set(sizes) == set(case.variables) for sizes in case.sizes)
    assert all(size >= 1 for sizes in case.sizes for size in sizes.values())
    assert [sizes for sizes in case.sizes if not case.fits(sizes)] == []


@each_case
def test_attributes_fit_the_label(case: ShapeCase) -> None:
    assert bool(case.requirement) == (case.label == "requirement")
    assert (case.obstacle is not None) == (case.label == "impossible")
    assert case.label == "requirement" or not case.stricter
    assert len(case.specs) == len(case.dtypes)
    assert case.why


def test_counts() -> None:
    assert len({case.name for case in ALL}) == len(ALL)
    counts = Counter(case.label for case in CASES)
    assert counts["provable"] >= 40
    assert counts["requirement"] >= 35
    assert counts["provable"] + counts["requirement"] >= 80
    assert counts["impossible"] >= 15
    assert {case.label for case in VJP_CASES} == set(counts)
    assert len(labelled("provable")) == counts["provable"]


def test_arguments_are_deterministic_and_of_the_sizes() -> None:
    case = requires("a == b", of=({"x": "(a, 2)"}, "(b,)"), dtypes=("float32", "int32"), why="-")(
        lambda x, y: None
    )
    sizes = {"a": 3, "b": 3}
    tree, integers = case.arguments(sizes, seed=1)
    assert tree["x"].shape == (3, 2)
    assert tree["x"].dtype == np.float32
    assert integers.shape == (3,)
    assert integers.dtype == np.int32
    assert set(integers.tolist()) <= {0, 1, 2, 3, 4}
    again, _ = case.arguments(sizes, seed=1)
    np.testing.assert_array_equal(tree["x"], again["x"])
    other, _ = case.arguments(sizes, seed=2)
    assert (other["x"] != tree["x"]).any()


@pytest.mark.parametrize(
    ("case", "problem"),
    [
        (provable("(b,)", why="-")(lambda x: jnp.stack([x[:2], x[:3][1:]])), "fails at {'b': 1}"),
        (
            requires("b >= 2", of=("(b,)",), why="-")(lambda x: jax.lax.top_k(x, 3)),
            "fails at {'b': 2}, which the requirement admits",
        ),
        (
            requires("b >= 4", of=("(b,)",), why="-")(lambda x: jax.lax.top_k(x, 3)),
            "works at {'b': 3}, which the requirement excludes",
        ),
        (
            requires("b >= 3", of=("(b,)",), why="-", stricter=True)(lambda x: jax.lax.top_k(x, 3)),
            "is no stricter than it has to be",
        ),
        (
            impossible("(b,)", obstacle="no size fits", why="-")(lambda x: x.reshape(3)),
            "works at {'b': 3}",
        ),
        (
            impossible("(b,)", obstacle="few sizes fit", why="-")(lambda x: jax.lax.top_k(x, 3)),
            "works at {'b': 6}",
        ),
        (
            impossible("(b,)", obstacle="few sizes fit", why="-")(
                lambda x: jnp.stack([x, jnp.ones(x.shape[0] + 1)])
            ),
            "works at no size",
        ),
        (
            impossible("(b,)", obstacle="needs a number", why="-")(lambda x: x.reshape(3)),
            "fails at {'b': 1}",
        ),
        (
            provable("(b,)", why="-", of_gradient=True)(
                lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: y + 1, x)
            ),
            "fails at {'b': 1}",
        ),
    ],
)
def test_wrong_labels_are_found(case: ShapeCase, problem: str) -> None:
    assert problem_with_label(case) == problem


def test_an_exportable_function_is_no_case() -> None:
    assert rejection(provable("(b,)", why="-")(jnp.sin)) is None


@pytest.mark.parametrize(
    ("text", "true"), [("mod(b, 2) == 0", [2, 4]), ("max(b, 3) < 4", [1, 2, 3])]
)
def test_holds(text: str, true: Iterable[Any]) -> None:
    assert [b for b in range(1, 6) if holds(text, {"b": b})] == list(true)


def test_grid_has_all_small_combinations() -> None:
    found = grid(("a", "b"), 20, 9)
    assert {(a, b) for a in range(1, 4) for b in range(1, 4)} <= {
        (sizes["a"], sizes["b"]) for sizes in found
    }
    assert all(1 <= size <= 20 for sizes in found for size in sizes.values())


def test_doctests() -> None:
    failed, tried = doctest.testmod(shape_case)
    assert failed == 0
    assert tried >= 2
