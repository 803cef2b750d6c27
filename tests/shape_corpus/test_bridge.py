"""Runs the corpus through the bridge: results, requirements and errors."""

from typing import Any

import jax
import numpy as np
import pytest

import jax2tf_bridge as bridge
from jax2tf_bridge import AUTO, convert, export
from jax2tf_bridge.errors import GradientError, InconclusiveShapeError
from shape_poly import SymbolicScope
from tests.sampling import sampled, stride
from tests.shape_corpus import VJP_CASES, labelled
from tests.shape_corpus.shape_case import ShapeCase, grid

# jnp.stack of JAX 0.8 does not say which shapes differ, so that there is nothing to read.
SILENT_IN_JAX_0_8 = {
    "evens_beside_second_half",
    "every_second_beside",
    "interleave_and_cut",
    "odd_autoencoder",
    "strides_of_three_compose",
    "table",
    "thirds_beside_start",
}

PROVABLE, REQUIREMENT = labelled("provable"), labelled("requirement")
IMPOSSIBLE = labelled("impossible")


def function_of(case: ShapeCase, constraints: Any) -> bridge.PortableFunction:
    if case.name in SILENT_IN_JAX_0_8 and jax.__version_info__ < (0, 9):
        pytest.skip("jnp.stack of JAX 0.8 does not say which shapes differ")
    exporter = export(
        case.function,
        polymorphic_shapes=list(case.specs),
        polymorphic_constraints=constraints,
        platforms=["cpu"],
    )
    return exporter(*case.shapes(case.sizes[-1]))


@pytest.mark.parametrize("case", sampled(PROVABLE, every=5), ids=str)
def test_provable_cases_pass_without_help(case: ShapeCase) -> None:
    assert function_of(case, ()).requirements == ()


@pytest.mark.parametrize("case", sampled(REQUIREMENT, every=5), ids=str)
def test_inferred_requirements_are_the_right_ones(case: ShapeCase) -> None:
    portable = function_of(case, AUTO)
    stated = SymbolicScope(portable.requirements)
    for sizes in grid(case.variables, 24, 300):
        assert stated.holds(sizes) == case.fits(sizes), (portable.requirements, sizes)


@pytest.mark.parametrize("case", sampled(REQUIREMENT, every=11), ids=str)
def test_requirements_are_asked_for_by_default(case: ShapeCase) -> None:
    with pytest.raises(InconclusiveShapeError) as caught:
        function_of(case, ())
    error = caught.value
    assert case.function.__code__.co_filename in str(error.source)
    assert error.counterexample is not None
    assert not case.fits({**dict.fromkeys(case.variables, 1), **error.counterexample})
    assert f'polymorphic_constraints=["{error.requirements[0]}"' in str(error)
    # The constraint in the error suffices.
    assert function_of(case, error.requirements).requirements == ()


# Taking every fifth row alternates between the two kinds of constraints.
IMPOSSIBLE_EITHER_WAY = [(case, how) for case in IMPOSSIBLE for how in ((), AUTO)]


@pytest.mark.parametrize(
    "row", sampled(IMPOSSIBLE_EITHER_WAY, every=5), ids=lambda row: f"{row[0]}-{row[1]}"
)
def test_impossible_cases_have_a_counterexample(row: tuple[ShapeCase, Any]) -> None:
    case, constraints = row
    with pytest.raises(Exception) as caught:  # noqa: PT011
        function_of(case, constraints)
    error = caught.value
    if isinstance(error, InconclusiveShapeError):
        assert error.counterexample
        assert any(f"{name} = " in str(error) for name in case.variables)
    else:  # JAX's own error is about something else, or final; a note says that sizes don't help.
        note = "\n".join(error.__notes__)
        assert "fails for every size that was tried" in note
        assert any(f"{name} = " in note for name in case.variables)


@pytest.mark.parametrize("case", sampled(labelled("provable", VJP_CASES), every=2), ids=str)
def test_provable_gradients_pass_without_help(case: ShapeCase) -> None:
    portable = function_of(case, ())
    assert portable.requirements == portable.vjp().requirements == ()


@pytest.mark.parametrize("case", sampled(labelled("requirement", VJP_CASES), every=2), ids=str)
def test_requirements_of_a_gradient_bind_the_gradient_alone(case: ShapeCase) -> None:
    portable = function_of(case, AUTO)
    before = portable.module.data
    stated = SymbolicScope(portable.vjp().requirements)
    for sizes in grid(case.variables, 24, 300):
        assert stated.holds(sizes) == case.fits(sizes), (portable.vjp().requirements, sizes)
    assert portable.requirements == ()
    assert portable.module.data is before
    with pytest.raises(InconclusiveShapeError, match="the gradient of"):
        function_of(case, ()).vjp()


@pytest.mark.parametrize("case", sampled(labelled("impossible", VJP_CASES), every=2), ids=str)
def test_impossible_gradients_say_so_when_they_are_asked_for(case: ShapeCase) -> None:
    portable = function_of(case, AUTO)
    assert portable.requirements == ()
    with pytest.raises((InconclusiveShapeError, GradientError)) as caught:
        portable.vjp()
    assert portable.gradient_problem() == str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("case", sampled(PROVABLE + REQUIREMENT, every=6), ids=str)
def test_results_are_those_of_jax(case: ShapeCase) -> None:
    constraints = AUTO if case.label == "requirement" else ()
    converted = convert(
        case.function,
        polymorphic_shapes=list(case.specs),
        polymorphic_constraints=constraints,
        native_serialization_platforms=["cpu"],
    )
    assert len(case.sizes) >= 10
    for sizes in case.sizes[:: stride(3)]:
        arguments = case.arguments(sizes)
        expected = jax.tree.leaves(jax.jit(case.function)(*arguments))
        found = jax.tree.leaves(converted(*arguments))
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5, err_msg=str(sizes))
