"""Every case of the table in TensorFlow, converted, against JAX: values and gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import pytest

from tests.primitives.arguments import normal
from tests.primitives.record import Case, cases
from tests.primitives.running import disagreements
from tests.primitives.table import SUBJECTS

_LARGEST_GROUP = 12


def _groups(subject: str, subject_cases: Sequence[Case]) -> Iterator[object]:
    """Cases of one precision that run as one module."""
    for x64 in (False, True):
        chosen = [case for case in subject_cases if case.x64 == x64]
        for start in range(0, len(chosen), _LARGEST_GROUP):
            group = chosen[start : start + _LARGEST_GROUP]
            name = f"{subject}-{'64' if x64 else '32'}-{start // _LARGEST_GROUP}"
            yield pytest.param(group, id=name)


_GROUPS = [group for name, found in SUBJECTS.items() for group in _groups(name, found)]


@pytest.mark.slow
@pytest.mark.parametrize("group", _GROUPS)
def test_values_and_gradients_are_those_of_jax(group: list[Case]) -> None:
    assert not (found := disagreements(group)), "\n".join(map(str, found))


def test_a_sample_of_every_subject() -> None:
    """So that the fast tests notice when the table does not run at all."""
    sample = [next(case for case in found if not case.x64) for found in SUBJECTS.values()]
    assert not (found := disagreements(sample)), "\n".join(map(str, found))


def test_a_case_that_differs_is_found() -> None:
    """By its name, in a group with others that agree."""
    calls = iter(range(1000))
    (wrong,) = cases("jax.lax.sin", normal(3), call=lambda f, x: f(x) + next(calls))
    (right,) = cases("jax.lax.cos", normal(3))
    assert {d.case.name for d in disagreements([wrong, right])} == {wrong.name}


def test_a_case_that_fails_is_found() -> None:
    def fails(f: object, x: object) -> object:
        raise ValueError("it fails")

    (wrong,) = cases("jax.lax.sin", normal(3), call=fails)
    (right,) = cases("jax.lax.cos", normal(3), call=lambda f, x: f(x) + jnp.sin(x))
    found = disagreements([right, wrong])
    assert {d.case.name for d in found} == {wrong.name}
    assert "it fails" in str(found[0])
